package limiter

const childJob = "LIMITER_TEST_CHILD"

func runChild(job string) int { return 0 }
