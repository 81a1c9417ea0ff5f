#!/usr/bin/env bash
# Builds remote-wal_<version>_<architecture>.deb into a directory, for hosts with this host's release of Debian or Ubuntu:
#   deploy/packages/build_deb.sh dist/remote_wal-0.1.0-py3-none-any.whl dist
# Needs the package python3-venv and a package index. DEBFULLNAME and DEBEMAIL say who built it.
set -euo pipefail
umask 022
unset PYTHONPATH PYTHONHOME

wheel=$(realpath "$1") out=$(realpath "$2")
root=$(realpath "$(dirname "$0")/../..")
version=$(basename "$wheel" | cut -d - -f 2)
architecture=$(dpkg --print-architecture)
python=$(realpath /usr/bin/python3) # the system's own, which has the name of its package
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
stage=$scratch/stage
home=$stage/opt/remote-wal

"$python" "$root/deploy/packages/host_lock.py" > "$scratch/host.lock"
"$python" -m venv "$home"
pip=("$home/bin/python" -m pip --disable-pip-version-check --no-input --quiet)
"${pip[@]}" install --no-compile --no-deps --only-binary :all: --require-hashes --requirement "$scratch/host.lock"
"${pip[@]}" install --no-compile --no-deps --no-index "$wheel"
"${pip[@]}" uninstall --yes pip setuptools
# An environment knows its own path: make it the one that it will have.
grep -rlIF "$stage" "$home" | xargs sed -i "s|$stage||g"
"$python" -m compileall -q -s "$stage" -p / "$home/lib"

deploy=$(echo "$home"/lib/*/site-packages/remote_wal/deploy)
install -D -m 644 -t "$stage/usr/lib/systemd/system" "$deploy"/systemd/*.{service,timer}
install -D -m 644 -t "$stage/usr/lib/sysusers.d" "$deploy/systemd/sysusers.d/remote-wal.conf"
mkdir -p "$stage/usr/share" "$stage/usr/bin" "$stage/DEBIAN"
cp -r "$deploy" "$stage/usr/share/remote-wal"
ln -s /opt/remote-wal/bin/remote-wal "$stage/usr/bin/remote-wal"

install -m 755 -t "$stage/DEBIAN" "$root"/deploy/packages/debian/*
cat > "$stage/DEBIAN/control" << END
Package: remote-wal
Version: $version
Architecture: $architecture
Maintainer: ${DEBFULLNAME:-$(id -un)} <${DEBEMAIL:-root@localhost}>
Installed-Size: $(du -sk "$stage" | cut -f 1)
Depends: $(basename "$python"), libc6, libstdc++6, systemd
Section: net
Priority: optional
Description: Replicate unmodified Apache Kafka across zones through object storage
 The agent that runs beside a broker, with its units, alerts and board in
 /usr/share/remote-wal. Nothing is started or enabled by installing it.
END
dpkg-deb --root-owner-group -Zzstd --build "$stage" "$out/remote-wal_${version}_$architecture.deb"
