#!/bin/sh
# The guest's first process on the host's files: it loads the drivers and runs the starter.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p /dev/shm /dev/pts /sys/fs/cgroup
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts -o mode=600,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mkdir -p /run/netns /run/hosts /lib/modules
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose,access=any modules /lib/modules
# rxe sums every packet with crc32; without the module a link is refused as "No such file".
modprobe -a virtio_console virtio_rng crc32_generic ib_uverbs rdma_ucm rdma_rxe
ip link set lo up
hostname guest
ulimit -l unlimited
ulimit -n 65536
for port in /sys/class/virtio-ports/*; do
    [ "$(cat "$port/name")" = commands ] && device=/dev/${port##*/}
done
# -S -E: it starts sooner, and the caller's variables are for the commands.
"$PYTHON" -S -E "$GUEST/starter.py" "$device"
echo "the starter of commands ended with $?"
echo o >/proc/sysrq-trigger
while :; do read -r never </dev/zero; done
