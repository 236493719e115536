#!/usr/bin/env bash
# Makes sure that the tests find a redis-server: installs it where it is missing
# and we may, else says how. Tests never skip for want of it.
set -euo pipefail

if command -v "${REDIS_SERVER:-redis-server}" >/dev/null; then
  exit 0
fi
if [[ -z "${REDIS_SERVER:-}" && $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
  echo "redis: installing redis-server with apt-get" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2
  apt-get install -qq --yes --no-install-recommends redis-server >&2
  exit 0
fi
cat >&2 <<'TEXT'
redis: the tests need a redis-server (or valkey-server), and there is none. Install it:
         Debian, Ubuntu   sudo apt-get install redis-server
         Fedora           sudo dnf install valkey
         macOS            brew install redis
       or set REDIS_SERVER to the path of one.
TEXT
exit 1
