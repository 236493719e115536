#!/usr/bin/env bash
# Makes sure that the tests find an nginx: installs it where it is missing and we
# may, else says how. Tests never skip for want of it.
set -euo pipefail

PATH="$PATH:/usr/sbin" # where Debian has it, and users often have not
if command -v "${NGINX_BINARY:-nginx}" >/dev/null; then
  exit 0
fi
if [[ -z "${NGINX_BINARY:-}" && $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
  echo "nginx: installing nginx with apt-get" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2
  apt-get install -qq --yes --no-install-recommends nginx >&2
  exit 0
fi
cat >&2 <<'TEXT'
nginx: the tests need an nginx, and there is none. Install it:
         Debian, Ubuntu   sudo apt-get install nginx
         Fedora           sudo dnf install nginx
         macOS            brew install nginx
       or set NGINX_BINARY to the path of one with the module http_auth_request.
TEXT
exit 1
