#!/usr/bin/env bash
# Prints the directory that holds etcd, kube-apiserver and kubectl, and builds
# them first if this machine has not done so yet. Standard output is that one
# line; what it does while it works goes to standard error.
#
#   export KUBEBUILDER_ASSETS="$(hack/controlplane/build.sh)"
set -euo pipefail

if [[ -n "${KUBEBUILDER_ASSETS:-}" ]]; then
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi

cd "$(dirname "${BASH_SOURCE[0]}")"
# What is built must not depend on a workspace or on the state of the tree.
export GOWORK=off CGO_ENABLED=0

sha256() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }

# The name says everything the result depends on, so a changed pin is built
# beside the old one and branches do not rebuild each other's.
key=$({ go env GOOS GOARCH; cat go.mod go.sum main.go; } | sha256 | cut -c1-16)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tallyman"
dir="$cache/controlplane-$key"

if [[ ! -d "$dir" ]]; then
  mkdir -p "$cache"
  # One build at a time: who comes second waits and then finds it done. Without
  # flock (macOS) both would build, which is a waste but no harm: the directory
  # appears whole, by a rename.
  exec 9>"$dir.lock"
  if command -v flock >/dev/null && ! flock --nonblock 9; then
    echo "controlplane: another build is running, waiting for it" >&2
    flock 9
  fi
fi

if [[ ! -d "$dir" ]]; then
  version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
  echo "controlplane: building etcd, kube-apiserver and kubectl $version from their Go modules" >&2
  echo "controlplane: several minutes on two cores, once a machine; kept in $dir" >&2

  minor=${version#v1.}
  flags="-s -w"
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
  done

  tmp=$(mktemp -d "$cache/.build.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  chmod 755 "$tmp"
  start=$SECONDS
  go build -trimpath -buildvcs=false -ldflags "$flags" -o "$tmp/controlplane" . >&2
  for program in etcd kube-apiserver kubectl; do
    ln -s controlplane "$tmp/$program"
  done
  [[ -d "$dir" ]] || mv "$tmp" "$dir"
  echo "controlplane: done in $((SECONDS - start)) s" >&2
fi

echo "$dir"
