package tallyman

// Counter names one counter of a limit.
type Counter struct {
	Policy, Limit string
	// Key has a value for each part of the limit's key, in their order, as people
	// write them: an address stands for its network, and "" for a value that
	// requests lack. It has none where the limit has no key.
	Key []string
}
