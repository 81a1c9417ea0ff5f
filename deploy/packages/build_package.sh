#!/usr/bin/env bash
# Builds remote-wal's .deb or .rpm into a directory, for hosts with this host's distribution, release and Python:
#   deploy/packages/build_package.sh deb dist/remote_wal-0.1.0-py3-none-any.whl dist
#   PYTHON=/usr/bin/python3.11 deploy/packages/build_package.sh rpm dist/remote_wal-0.1.0-py3-none-any.whl dist
# Needs a package index; python3-venv for a .deb, rpm-build for an .rpm. PYTHON is the distribution's own, 3.11 or newer,
# by default /usr/bin/python3. DEBFULLNAME and DEBEMAIL say who built a .deb.
set -euo pipefail
umask 022
unset PYTHONPATH PYTHONHOME

kind=$1 wheel=$(realpath "$2") out=$(realpath "$3")
root=$(realpath "$(dirname "$0")/../..")
version=$(basename "$wheel" | cut -d - -f 2)
python=$(realpath "${PYTHON:-/usr/bin/python3}") # with the name of its package
scripts=$root/deploy/packages/scripts
summary="Replicate unmodified Apache Kafka across zones through object storage"
description=" The agent that runs beside a broker, with its units, alerts and board in
 /usr/share/remote-wal. Nothing is started or enabled by installing it."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
stage=$scratch/stage
home=$stage/opt/remote-wal

lay_out_files() {
    "$python" "$root/deploy/packages/host_lock.py" > "$scratch/host.lock"
    "$python" -m venv "$home"
    local pip=("$home/bin/python" -m pip --disable-pip-version-check --no-input --quiet)
    "${pip[@]}" install --no-compile --no-deps --only-binary :all: --require-hashes --requirement "$scratch/host.lock"
    # By its name, as pip would note the wheel's path on this machine.
    "${pip[@]}" install --no-compile --no-deps --no-index --find-links "$(dirname "$wheel")" "remote-wal==$version"
    "${pip[@]}" uninstall --yes pip setuptools
    # An environment knows its own path: make it the one that it will have.
    grep -rlIF "$stage" "$home" | xargs sed -i "s|$stage||g"
    # So its programs are not what pip noted of them.
    find "$home/lib" -name RECORD -exec sed -i '\|^\(\.\./\)*bin/|d' {} +
    "$python" -m compileall -q --invalidation-mode unchecked-hash -s "$stage" -p / "$home/lib"

    local deploy
    deploy=$(echo "$home"/lib/*/site-packages/remote_wal/deploy)
    install -D -m 644 -t "$stage/usr/lib/systemd/system" "$deploy"/systemd/*.{service,timer}
    install -D -m 644 -t "$stage/usr/lib/sysusers.d" "$deploy/systemd/sysusers.d/remote-wal.conf"
    mkdir -p "$stage/usr/share" "$stage/usr/bin"
    cp -r "$deploy" "$stage/usr/share/remote-wal"
    ln -s /opt/remote-wal/bin/remote-wal "$stage/usr/bin/remote-wal"
}

pack_deb() {
    local architecture
    architecture=$(dpkg --print-architecture)
    mkdir "$stage/DEBIAN"
    install -m 755 -t "$stage/DEBIAN" "$scripts"/*
    cat > "$stage/DEBIAN/control" << END
Package: remote-wal
Version: $version
Architecture: $architecture
Maintainer: ${DEBFULLNAME:-$(id -un)} <${DEBEMAIL:-root@localhost}>
Installed-Size: $(du -sk "$stage" | cut -f 1)
Depends: $(basename "$python"), libc6, libstdc++6, systemd
Section: net
Priority: optional
Description: $summary
$description
END
    dpkg-deb --root-owner-group -Zzstd --build "$stage" "$out/remote-wal_${version}_$architecture.deb"
}

pack_rpm() {
    # Its files go in as they are: rpm would strip libraries, compile again, and look for what each library needs.
    cat > "$scratch/remote-wal.spec" << END
%global __os_install_post %{nil}
%global _build_id_links none
Name: remote-wal
Version: $version
Release: 1
Summary: $summary
License: Apache-2.0
AutoReqProv: no
Requires: $python, libstdc++.so.6()(64bit), systemd
%description
$description
%install
mkdir -p "%{buildroot}"
cp -a "$stage/." "%{buildroot}"
%pre -f $scripts/preinst
%post -f $scripts/postinst
%preun -f $scripts/prerm
%postun -f $scripts/postrm
%files
%defattr(-, root, root)
/opt/remote-wal
/usr/bin/remote-wal
/usr/lib/systemd/system/remote-wal*
/usr/lib/sysusers.d/remote-wal.conf
/usr/share/remote-wal
END
    rpmbuild -bb --quiet --define "_topdir $scratch/rpm" --define "_rpmdir $out" --define "_binary_payload w3.zstdio" \
        --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" "$scratch/remote-wal.spec"
}

lay_out_files
"pack_$kind"
