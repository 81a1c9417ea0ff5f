#!/bin/bash
# Process 1 of new namespaces: lays a root over this machine's, whose changes are gone at the end, and becomes systemd there.
# $1 is a directory with `files`, which are laid over that root, and `prepare`, run in it. `pid` is told there.
set -euo pipefail
scratch=$1
read -r pid _ < /proc/self/stat # As whoever looks from outside knows this process.
echo "$pid" > "$scratch/pid"

mount --make-rprivate /
mkdir -p "$scratch/overlay"
mount -t tmpfs tmpfs "$scratch/overlay"
mkdir "$scratch/overlay"/{upper,work,root}
root=$scratch/overlay/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/overlay/upper,workdir=$scratch/overlay/work" "$root"

mkdir -p "$root"/{proc,sys,dev,run,tmp}
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys" # The kernel's settings are those of everybody on this machine.
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for one in dev run tmp; do mount -t tmpfs -o mode=755 tmpfs "$root/$one"; done
chmod 1777 "$root/tmp"
mkdir "$root"/dev/{pts,shm}
ln -s pts/ptmx "$root/dev/ptmx"
for one in null zero full random urandom tty; do
    touch "$root/dev/$one"
    mount --bind "/dev/$one" "$root/dev/$one"
done
ip link set lo up

# What this machine starts, and what is about its devices, is not for here.
rm -rf "$root"/etc/systemd/system/*.{wants,requires} "$root"/etc/{init,rc?}.d/* "$root/var/log/journal"
for one in systemd-{sysctl,modules-load,remount-fs,binfmt,udevd,udev-trigger,pstore,networkd-wait-online}.service \
    modprobe@.service {dev-hugepages,dev-mqueue,sys-kernel-debug,sys-kernel-tracing}.mount; do
    ln -sf /dev/null "$root/etc/systemd/system/$one"
done
while read -r from to; do
    mkdir -p "$root$to"
    mount --bind "$from" "$root$to"
    mount -o remount,bind,ro "$root$to"
done < "$scratch/mounts"
cp -r --no-preserve=ownership "$scratch/files/." "$root/"
chroot "$root" /bin/bash -euo pipefail < "$scratch/prepare"

mkdir "$root/old"
cd "$root"
pivot_root . old
exec 0< /dev/null
umount -l /old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_LOG_TARGET=journal \
    "$2" --system --show-status=0 --unit=multi-user.target
