#!/usr/bin/env bash
# Makes sure that the tests find a program, redis, nginx or prometheus: installs it where it is
# missing and we may, else says how. Tests never skip for want of it.
set -euo pipefail

PATH="$PATH:/usr/sbin" # where Debian has nginx, and users often have not
case "${1:-}" in
redis)
  variable=REDIS_SERVER package=redis-server fedora=valkey macos=redis
  what="a redis-server (or valkey-server)" which="one"
  ;;
nginx)
  variable=NGINX_BINARY package=nginx fedora=nginx macos=nginx
  what="an nginx" which="one with the module http_auth_request"
  ;;
prometheus)
  variable=PROMETHEUS_BINARY package=prometheus fedora=golang-github-prometheus macos=prometheus
  what="prometheus and promtool" which="one, with promtool beside it"
  ;;
*)
  echo "usage: hack/need.sh redis|nginx|prometheus" >&2
  exit 2
  ;;
esac

chosen="${!variable:-}"
if command -v "${chosen:-$package}" >/dev/null; then
  exit 0
fi
if [[ -z "$chosen" && $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
  echo "$1: installing $package with apt-get" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2
  apt-get install -qq --yes --no-install-recommends "$package" >&2
  exit 0
fi
cat >&2 <<TEXT
$1: the tests need $what, and there is none. Install it:
         Debian, Ubuntu   sudo apt-get install $package
         Fedora           sudo dnf install $fedora
         macOS            brew install $macos
       or set $variable to the path of $which.
TEXT
exit 1
