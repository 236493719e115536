package install

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/golden"
)

// Whoever changes one of them has to change the other.
func TestTheChartIsTheSameAsTheKustomizations(t *testing.T) {
	for name, test := range map[string]struct {
		kustomization string
		values        []string
	}{
		"by default":      {root + "/config/default", nil},
		"with components": {"testdata/components", []string{"--set=replicas=1,injection.enabled=false"}},
		"with monitoring": {root + "/test/monitoring/testdata/monitored", []string{"--set=monitors.enabled=true"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := build(t, test.kustomization)
			delete(want, "Namespace "+system)       // of a release, it is who installs it that makes the namespace
			delete(want, "PrometheusRule tallyman") // alerts are the component's only
			if diff := cmp.Diff(want, render(t, test.values...).withoutHelms()); diff != "" {
				t.Errorf("kustomize build and helm template (-kustomize +helm):\n%s", diff)
			}
		})
	}
}

func TestNetworkPoliciesAreTheSameToo(t *testing.T) {
	const name = "NetworkPolicy tallyman-manager"
	want := parse(t, read(t, root+"/config/network-policy/manager.yaml"))[name]
	want = strings.Replace(want, "metadata:\n", "metadata:\n  labels:\n    app.kubernetes.io/name: tallyman\n", 1)
	got := render(t, "--set=networkPolicy.enabled=true").withoutHelms()[name]
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config/network-policy and helm template (-want +got):\n%s", diff)
	}
}

// The golden files have what is other than by default.
func TestValuesChangeWhatTheySay(t *testing.T) {
	defaults := render(t)
	for _, path := range valuesFiles(t) {
		name := strings.TrimSuffix(path, ".in.yaml")
		t.Run(filepath.Base(name), func(t *testing.T) {
			golden.Compare(t, name+".out.yaml", render(t, "--values="+path).changed(defaults))
		})
	}
}

func valuesFiles(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("find testdata: %d files, %v", len(paths), err)
	}
	return paths
}

func TestValuesThatAreWrongAreRefused(t *testing.T) {
	for value, want := range map[string]string{
		"replica=3":                                  "at '': additional properties 'replica' not allowed",
		"injection.enable=true":                      "at '/injection': additional properties 'enable' not allowed",
		"resources.request.cpu=1":                    "at '/resources': additional properties 'request' not allowed",
		"replicas=0":                                 "at '/replicas': minimum: got 0, want 1",
		"replicas=11":                                "at '/replicas': maximum: got 11, want 10",
		"replicas=two":                               "at '/replicas': got string, want integer",
		"store=null":                                 "missing property 'store'",
		"prefix=null":                                "missing property 'prefix'",
		"injection.image.repository=null":            "at '/injection/image': missing property 'repository'",
		"store.url=null":                             "at '/store': missing property 'url'",
		"injection.enabled=yes":                      "at '/injection/enabled': got string, want boolean",
		"image.tag=a b":                              "at '/image/tag': 'a b' does not match pattern",
		"image.digest=e3b0c442":                      "at '/image/digest': 'e3b0c442' does not match pattern",
		"image.repository=Tallyman:v1":               "at '/image/repository': 'Tallyman:v1' does not match pattern",
		"image.pullPolicy=Sometimes":                 "at '/image/pullPolicy': value must be one of '', 'Always', 'IfNotPresent', 'Never'",
		"imagePullSecrets[0]=registry":               "at '/imagePullSecrets/0': got string, want object",
		"injection.failurePolicy=ignore":             "at '/injection/failurePolicy': value must be one of 'Fail', 'Ignore'",
		"prefix={shop}":                              "at '/prefix': got array, want string",
		"prefix=a:b":                                 "at '/prefix': 'a:b' does not match pattern",
		"store.secretName=Store":                     "at '/store/secretName': 'Store' does not match pattern",
		"store.url=http://u:hunter2@redis":           "store.url must begin with redis://",
		"store.url=u:hunter2@redis":                  "store.url must begin with redis://",
		"injection.store.url=hunter2":                "injection.store.url must be a URL such as redis://",
		"injection.store.url=redis://:hunter2@redis": "injection.store.url must have no credentials",
		"injection.store.url=redis://redis?password=hunter2": "injection.store.url must have no credentials",
		"extraArgs[0]=--store=redis://:hunter2@redis":        "extraArgs must not have --store",
		"extraArgs[0]=redis://:hunter2@redis":                "extraArgs[0] must be a flag",
	} {
		t.Run(value, func(t *testing.T) {
			_, err := run(t, helmPath, "template", "tallyman", chart, "--set", value)
			if err == nil {
				t.Fatal("it is not refused")
			}
			_, message, _ := strings.Cut(err.Error(), "\n") // the first line repeats the command
			if !strings.Contains(message, want) {
				t.Errorf("the message does not say %q: %s", want, message)
			}
			if strings.Contains(message, "hunter2") {
				t.Errorf("the message has the password: %s", message)
			}
		})
	}
}

// Kubernetes has namespaces and Secrets of digits only, which are numbers to YAML.
func TestNamesThatAreNoTextToYAMLAreText(t *testing.T) {
	objects := parse(t, mustRun(t, helmPath, "template", "1e3", chart, "--namespace=0123", "--set=store.url=redis://redis,monitors.enabled=true,networkPolicy.enabled=true",
		"--set-string=store.secretName=456,injection.store.secretName=789,prefix=true,priorityClassName=1.5"))
	for name, text := range objects {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			t.Errorf("%s: %v in\n%s", name, err, text)
		}
		if object.Labels["app.kubernetes.io/instance"] != "1e3" || object.Namespace != "" && object.Namespace != "0123" {
			t.Errorf("%s has namespace %q and labels %q", name, object.Namespace, object.Labels)
		}
	}
	var deployment appsv1.Deployment
	if err := yaml.Unmarshal([]byte(objects["Deployment tallyman-manager"]), &deployment); err != nil {
		t.Fatal(err)
	}
	pod := deployment.Spec.Template.Spec
	if pod.PriorityClassName != "1.5" || pod.Volumes[0].Secret.SecretName != "456" || objects["Secret 456"] == "" {
		t.Errorf("got %+v", pod)
	}
}

func TestAValueIsNoMoreThanItself(t *testing.T) {
	deployment := render(t, "--set-string=priorityClassName=a\n      hostNetwork: true")["Deployment tallyman-manager"]
	if strings.Contains(deployment, "\n      hostNetwork:") {
		t.Errorf("got\n%s", deployment)
	}
}

func TestACommentDocumentsEachValue(t *testing.T) {
	commented := false
	for line := range strings.Lines(read(t, chart+"/values.yaml")) {
		name, _, isField := strings.Cut(line, ":")
		switch {
		case strings.HasPrefix(line, "#"):
			commented = true
		case strings.TrimSpace(line) == "":
			commented = false
		case isField && !strings.HasPrefix(name, " ") && !commented:
			t.Errorf("%s has no comment", name)
		}
	}
}
