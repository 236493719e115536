# What a developer does with this repository. Needs Go, make, git and bash; tools
# come as Go modules, pinned in hack/tools, and are built on first use.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CONTROLLER_GEN := go tool -modfile=hack/tools/go.mod controller-gen
KUSTOMIZE := go tool -modfile=hack/tools/go.mod kustomize
HELM := go tool -modfile=hack/tools/helm/go.mod helm
GOLANGCI_LINT := go tool -modfile=hack/tools/golangci/go.mod golangci-lint

# The race detector needs a C compiler. Without one, tests without it are better
# than no tests.
RACE := $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)

# Without golang.org/x/net/trace in gRPC, which links html/template, the linker can
# leave out methods that nobody calls: the sidecar is a third smaller.
BUILD_TAGS := grpcnotrace

comma := ,
space := $() $()

# What generate, manifests and docs write.
GENERATED := 'api/**/zz_generated.*.go' config/crd/bases config/rbac/role.yaml config/webhook/manifests.yaml \
  docs/api.md docs/metrics.md charts/tallyman/generated

.PHONY: help
help: ## Print this text
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Try

.PHONY: demo
demo: ## Show the whole way, from kubectl apply to refused requests (KEEP=1 leaves it running)
	@hack/need.sh redis || echo "demo: going on with a Redis inside of its own process" >&2
	@go run ./hack/demo $(if $(KEEP),-keep)

##@ Develop

.PHONY: generate
generate: ## Write the API types' DeepCopy methods
	$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths=./api/...

.PHONY: manifests
manifests: ## Write the CRD and its reference, the manager's roles and the webhooks, and their copies in the chart
	$(CONTROLLER_GEN) crd paths=./api/... output:crd:artifacts:config=config/crd/bases
	$(CONTROLLER_GEN) rbac:roleName=manager-role paths=./internal/... output:rbac:artifacts:config=config/rbac
	$(CONTROLLER_GEN) webhook paths=./internal/webhook/... output:webhook:artifacts:config=config/webhook
	go run ./hack/apidoc config/crd/bases/*.yaml > docs/api.md
	@cp config/crd/bases/tallyman.dev_ratelimitpolicies.yaml charts/tallyman/generated/crd.yaml
	@cp config/rbac/role.yaml charts/tallyman/generated/role.yaml
	@cp config/webhook/manifests.yaml charts/tallyman/generated/webhooks.yaml

.PHONY: pictures
pictures: ## Draw the pictures of docs/images anew
	go test -count=1 ./test/pictures -update

# One package after the other: they write parts of one page.
.PHONY: docs
docs: ## Write the reference of metrics
	go test -p 1 ./internal/sidecar ./internal/controller ./internal/webhook/v1 -run '^TestMetricsReference$$' -update

.PHONY: fmt
fmt: ## Format the code
	$(GOLANGCI_LINT) fmt

.PHONY: build
build: ## Build the programs into bin/
	CGO_ENABLED=0 go build -trimpath -tags=$(BUILD_TAGS) -ldflags='-s -w' -o bin/ ./cmd/...

##@ Check

.PHONY: test
test: redis nginx controlplane helm ## Run all tests, against a real redis-server, nginx and kube-apiserver
	@echo "test: go test $(RACE) ./..."
	@KUBEBUILDER_ASSETS="$$(hack/controlplane/build.sh)" go test $(RACE) ./...
	@cd hack/images && go test $(RACE) ./...

.PHONY: test-faults
test-faults: redis ## Run all tests against servers that fail, those that take long too (two to three minutes)
	go test $(RACE) -count=1 ./test/chaos -chaos.all

# A module of its own, see test/monitoring/doc.go.
.PHONY: monitoring-test
monitoring-test: prometheus ## Test dashboards, alerts and whom to scrape, with a real Prometheus
	@cd test/monitoring && go vet ./... && go test ./...

# See test/e2e/doc.go for what it can be told.
.PHONY: test-e2e
test-e2e: helm ## Test on a kind cluster, as users have it (ten minutes or so)
	@for program in docker kind kubectl curl; do \
	  command -v $$program >/dev/null || { echo "test-e2e: $$program is missing: install it first" >&2; exit 1; }; \
	done
	@$(MAKE) --no-print-directory build-installer images PROGRAMS='$(PROGRAMS) ./test/e2e/app'
	go test -tags e2e -count=1 -v -timeout 30m ./test/e2e -ginkgo.v -ginkgo.no-color

.PHONY: verify
verify: stale vet lint ## Fail when generated files are stale, or manifests, an import rule, vet or lint are broken
	@echo "verify: kustomize build config/default"
	@$(KUSTOMIZE) build config/default >/dev/null
	@$(KUSTOMIZE) build test/monitoring/testdata/monitored >/dev/null
	@echo "verify: helm lint charts/tallyman"
	@$(HELM) lint --strict --quiet charts/tallyman
	@echo "verify: import rules"
	@go test -count=1 ./internal/arch # never cached: the cache does not see what go list reads

.PHONY: vet
vet: ## Run go vet
	go vet ./...

.PHONY: lint
lint: ## Run the linters (the first time, golangci-lint is built: minutes)
	$(GOLANGCI_LINT) run --allow-parallel-runners

# Compared with the index, not with the last commit: who has changed the API can
# stage what came out and verify before committing.
.PHONY: stale
stale: generate manifests docs
	@git diff --exit-code -- $(GENERATED) || \
	  { echo "verify: the files above were stale; they are up to date now, add them to your commit" >&2; exit 1; }
	@new="$$(git ls-files --others --exclude-standard -- $(GENERATED))"; [[ -z "$$new" ]] || \
	  { echo "verify: generated, but in no commit: $$new" >&2; exit 1; }
	@go mod tidy -diff || { echo "verify: go.mod is not tidy; run go mod tidy" >&2; exit 1; }

##@ Deploy

IMAGE_PREFIX ?= tallyman
IMAGE_TAG ?= dev
ARCH ?= $(shell go env GOARCH)
ARCHS ?= amd64 arm64
PROGRAMS ?= ./cmd/manager ./cmd/sidecar

# Of the commit, so that who builds it again has the same image.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)

.PHONY: linux
linux: ## Build PROGRAMS for images into bin/linux-ARCH
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) go build -trimpath -tags=$(BUILD_TAGS) -ldflags='-s -w' -o bin/linux-$(ARCH)/ $(PROGRAMS)

# Docker without BuildKit cannot say of an image that it is for another architecture.
.PHONY: images
images: linux ## Build the images of PROGRAMS (IMAGE_PREFIX=tallyman IMAGE_TAG=dev ARCH=amd64|arm64) with docker
	@for program in $(notdir $(PROGRAMS)); do \
	  SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) docker build --quiet --build-arg PROGRAM=$$program --build-arg TARGETARCH=$(ARCH) --build-arg VERSION=$(IMAGE_TAG) \
	    --build-arg REVISION='$(REVISION)' $(if $(filter-out $(shell go env GOARCH),$(ARCH)),--platform linux/$(ARCH)) --tag $(IMAGE_PREFIX)/$$program:$(IMAGE_TAG) . >/dev/null; \
	  echo "images: $(IMAGE_PREFIX)/$$program:$(IMAGE_TAG)"; \
	done

.PHONY: image-archives
image-archives: ## Write dist/PROGRAM.tar, OCI archives with the images for all ARCHS, without docker
	@$(MAKE) --no-print-directory multi-arch WHERE='-archive ../../dist'

.PHONY: push-images
push-images: ## Push the images for all ARCHS to IMAGE_PREFIX, without docker
	@$(MAKE) --no-print-directory multi-arch WHERE=-push

.PHONY: multi-arch
multi-arch:
	@mkdir -p dist
	@for arch in $(ARCHS); do $(MAKE) --no-print-directory linux ARCH=$$arch; done
	@cd hack/images && go run . -prefix $(IMAGE_PREFIX) -tag $(IMAGE_TAG) -archs $(subst $(space),$(comma),$(strip $(ARCHS))) \
	  -revision '$(REVISION)' -epoch $(SOURCE_DATE_EPOCH) $(WHERE) $(notdir $(PROGRAMS))

.PHONY: build-installer
build-installer: ## Write dist/install.yaml, all that a cluster needs besides a Redis, for the images of IMAGE_PREFIX and IMAGE_TAG
	@mkdir -p dist
	@$(KUSTOMIZE) build config/default | \
	  sed -E 's|tallyman/(manager\|sidecar):dev|$(IMAGE_PREFIX)/\1:$(IMAGE_TAG)|' > dist/install.yaml
	@echo "build-installer: dist/install.yaml"

# The version of a chart is a semantic one: that of v0.1.0 is 0.1.0, and of dev 0.0.0-dev.
CHART_VERSION ?= $(shell sed -E '/^v?[0-9]+\.[0-9]+\.[0-9]+/!s/^/0.0.0-/; s/^v//' <<<'$(IMAGE_TAG)')

.PHONY: chart
chart: ## Write dist/tallyman-VERSION.tgz, the Helm chart for the images of IMAGE_PREFIX and IMAGE_TAG
	@rm -rf dist/chart && mkdir -p dist && cp -R charts/tallyman dist/chart
	@sed 's|repository: tallyman/|repository: $(IMAGE_PREFIX)/|' charts/tallyman/values.yaml > dist/chart/values.yaml
	@$(HELM) package dist/chart --version $(CHART_VERSION) --app-version $(IMAGE_TAG) --destination dist >/dev/null
	@rm -rf dist/chart
	@echo "chart: dist/tallyman-$(CHART_VERSION).tgz"

PLUGIN_VERSION ?= v0.0.0

.PHONY: plugin-archives
plugin-archives: ## Build the kubectl plugin's archives and its krew manifest into dist/ (PLUGIN_VERSION=v0.1.0; minutes)
	@go run ./hack/krew -version $(PLUGIN_VERSION)

##@ Measure

# Other options: make bench BENCH_FLAGS='--quick', or --help. See docs/performance.md.
.PHONY: bench
bench: redis ## Measure the engine and the proxy against others (minutes; BENCH_FLAGS=--quick: one)
	@cd test/bench && go run . $(BENCH_FLAGS)

# Other options: make bench-scale SCALE_FLAGS='--check -o json', or --help. See docs/scale.md.
.PHONY: bench-scale
bench-scale: redis controlplane ## Measure 10,000 policies and 1,000 sidecars (minutes; SCALE_FLAGS=--quick: one)
	@KUBEBUILDER_ASSETS="$$(hack/controlplane/build.sh)" go run ./test/scale $(SCALE_FLAGS)

.PHONY: bench-test
bench-test: redis controlplane ## Run the tests of the benchmarks themselves, and that at scale as a small one
	@cd test/bench && go vet ./... && go test ./...
	@KUBEBUILDER_ASSETS="$$(hack/controlplane/build.sh)" go run ./test/scale --quick --check

##@ Prepare (the targets above do it by themselves)

.PHONY: controlplane
controlplane: ## Build etcd, kube-apiserver and kubectl, once a machine
	@hack/controlplane/build.sh >/dev/null

.PHONY: helm
helm: ## Build helm, once a machine
	@go tool -n -modfile=hack/tools/helm/go.mod helm >/dev/null

.PHONY: redis
redis: ## Install redis-server, where it is missing and we may
	@hack/need.sh redis

.PHONY: nginx
nginx: ## Install nginx, where it is missing and we may
	@hack/need.sh nginx

.PHONY: prometheus
prometheus: ## Install prometheus and promtool, where they are missing and we may
	@hack/need.sh prometheus

# The control plane stays: other clones on this machine use it too.
.PHONY: clean
clean: ## Remove what make build built
	rm -rf bin
