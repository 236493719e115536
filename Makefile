# What a developer does with this repository. Needs Go, make, git and bash; tools
# come as Go modules, pinned in hack/tools, and are built on first use.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CONTROLLER_GEN := go tool -modfile=hack/tools/go.mod controller-gen
KUSTOMIZE := go tool -modfile=hack/tools/go.mod kustomize
GOLANGCI_LINT := go tool -modfile=hack/tools/golangci/go.mod golangci-lint

# The race detector needs a C compiler. Without one, tests without it are better
# than no tests.
RACE := $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)

# Without golang.org/x/net/trace in gRPC, which links html/template, the linker can
# leave out methods that nobody calls: the sidecar is a third smaller.
BUILD_TAGS := grpcnotrace

# What generate and manifests write.
GENERATED := 'api/**/zz_generated.*.go' config/crd/bases config/rbac/role.yaml config/webhook/manifests.yaml

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
manifests: ## Write the CRD, the manager's roles and the webhooks
	$(CONTROLLER_GEN) crd paths=./api/... output:crd:artifacts:config=config/crd/bases
	$(CONTROLLER_GEN) rbac:roleName=manager-role paths=./internal/... output:rbac:artifacts:config=config/rbac
	$(CONTROLLER_GEN) webhook paths=./internal/webhook/... output:webhook:artifacts:config=config/webhook

.PHONY: fmt
fmt: ## Format the code
	$(GOLANGCI_LINT) fmt

.PHONY: build
build: ## Build the programs into bin/
	CGO_ENABLED=0 go build -trimpath -tags=$(BUILD_TAGS) -ldflags='-s -w' -o bin/ ./cmd/...

##@ Check

.PHONY: test
test: redis nginx controlplane ## Run all tests, against a real redis-server, nginx and kube-apiserver
	@echo "test: go test $(RACE) ./..."
	@KUBEBUILDER_ASSETS="$$(hack/controlplane/build.sh)" go test $(RACE) ./...

.PHONY: test-faults
test-faults: redis ## Run all tests against servers that fail, those that take long too (two to three minutes)
	go test $(RACE) -count=1 ./test/chaos -chaos.all

# See test/e2e/doc.go for what it can be told.
.PHONY: test-e2e
test-e2e: ## Test on a kind cluster, as users have it (ten minutes or so)
	@for program in docker kind kubectl curl; do \
	  command -v $$program >/dev/null || { echo "test-e2e: $$program is missing: install it first" >&2; exit 1; }; \
	done
	@$(MAKE) --no-print-directory build-installer images PROGRAMS='$(PROGRAMS) ./test/e2e/app'
	go test -tags e2e -count=1 -v -timeout 30m ./test/e2e -ginkgo.v -ginkgo.no-color

.PHONY: verify
verify: stale vet lint ## Fail when generated files are stale, or manifests, an import rule, vet or lint are broken
	@echo "verify: kustomize build config/default"
	@$(KUSTOMIZE) build config/default >/dev/null
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
stale: generate manifests
	@git diff --exit-code -- $(GENERATED) || \
	  { echo "verify: the files above were stale; they are up to date now, add them to your commit" >&2; exit 1; }
	@new="$$(git ls-files --others --exclude-standard -- $(GENERATED))"; [[ -z "$$new" ]] || \
	  { echo "verify: generated, but in no commit: $$new" >&2; exit 1; }
	@go mod tidy -diff || { echo "verify: go.mod is not tidy; run go mod tidy" >&2; exit 1; }

##@ Deploy

IMAGE_PREFIX ?= tallyman
IMAGE_TAG ?= dev
ARCH ?= $(shell go env GOARCH)
PROGRAMS ?= ./cmd/manager ./cmd/sidecar

.PHONY: images
images: ## Build the images of PROGRAMS (IMAGE_PREFIX=tallyman IMAGE_TAG=dev ARCH=amd64|arm64) with docker
	@mkdir -p bin/linux-$(ARCH)
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) go build -trimpath -tags=$(BUILD_TAGS) -ldflags='-s -w' -o bin/linux-$(ARCH)/ $(PROGRAMS)
	@for program in $(notdir $(PROGRAMS)); do \
	  docker build --quiet --build-arg PROGRAM=$$program --build-arg TARGETARCH=$(ARCH) \
	    --tag $(IMAGE_PREFIX)/$$program:$(IMAGE_TAG) . >/dev/null; \
	  echo "images: $(IMAGE_PREFIX)/$$program:$(IMAGE_TAG)"; \
	done

.PHONY: build-installer
build-installer: ## Write dist/install.yaml, all that a cluster needs besides a Redis, for the images of IMAGE_PREFIX and IMAGE_TAG
	@mkdir -p dist
	@$(KUSTOMIZE) build config/default | \
	  sed -E 's|tallyman/(manager\|sidecar):dev|$(IMAGE_PREFIX)/\1:$(IMAGE_TAG)|' > dist/install.yaml
	@echo "build-installer: dist/install.yaml"

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

.PHONY: redis
redis: ## Install redis-server, where it is missing and we may
	@hack/need.sh redis

.PHONY: nginx
nginx: ## Install nginx, where it is missing and we may
	@hack/need.sh nginx

# The control plane stays: other clones on this machine use it too.
.PHONY: clean
clean: ## Remove what make build built
	rm -rf bin
