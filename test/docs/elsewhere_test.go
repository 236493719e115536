package docs

// anyPage is for commands that no page can have run here.
const anyPage = ""

// elsewhere are the commands that TestCommandsRun does not run: those of a page, or of
// any, with a text in them; no text stands for all. The first row counts. Names of tests
// and specs are checked by internal/arch.
var elsewhere = []struct{ page, command, why string }{
	{"docs/quickstart.md", "", `the whole page is run on kind: spec of test/e2e, "by the quickstart leads from nothing to a refused request"`},
	{"docs/install.md", "kubectl delete -f dist/install.yaml", "it would take the cluster from all others; the specs of test/e2e begin with it (Installing)"},
	{"docs/install.md", "skopeo copy", "needs the archives, and a registry: hack/images, TestAnArchiveHasTheIndex"},
	{"docs/install.md", "kubectl apply --server-side -k .", "needs the repository on the network: TestTheKustomizationOfTheDocsHasTheImages"},
	{"docs/observability.md", "kubectl apply --server-side -k .", "needs the Prometheus Operator's kinds: TestWhomToScrapeIsThere"},
	{"docs/plugin.md", "kubectl tallyman ", "needs pods with sidecars: TestThePluginsGuideShowsWhatHappens"},
	{"docs/troubleshooting.md", "kubectl tallyman status", "as on docs/plugin.md"},
	{"docs/plugin.md", "kubectl krew", "needs krew; the manifest is held by TestTheManifestLeadsToTheArchives"},
	{"docs/ways-in.md", "curl -s http://127.0.0.1:8082/v1/check", "needs the sidecar of a block before it: TestExamplesOfOpenAPIAreTrue"},
	{"docs/redis.md", "sidecar --store rediss://", "needs a server with certificates: TestMutualTLSServes"},

	{anyPage, "kubectl rollout status", "waits for pods, and there is no kubelet here"},
	{anyPage, "kubectl wait", "waits for pods, and there is no kubelet here"},
	{anyPage, "kubectl logs", "there is no kubelet here"},
	{anyPage, "kubectl exec", "there is no kubelet here"},
	{anyPage, "kubectl port-forward", "there is no kubelet here"},
	{anyPage, "/proxy/", "asks a pod, and none runs here"},
	{anyPage, "helm ", "what it does to a cluster is seen by TestTheCommandsOfTheDocsLeadThereAndBack"},
	{anyPage, "docker push", "needs a registry of images"},
}
