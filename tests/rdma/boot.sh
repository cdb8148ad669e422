#!/bin/busybox sh
# The guest's first program: mounts the host's files, read-only under a layer in memory that takes
# what is written, and goes on with init.sh there.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do
    insmod "$module"
done </modules/order
mkdir /host /layer /all
fail() {
    echo "$1"
    poweroff -f
}
# A cache that trusts nobody else to write: the host's files are as they were when first read.
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose,access=any root /host ||
    fail "the host's files cannot be mounted"
mount -t tmpfs -o mode=755 layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work all /all ||
    fail "no layer can be put over the host's files"
for folder in proc sys dev; do
    mount --move /$folder /all/$folder
done
exec switch_root /all /bin/sh "$GUEST/init.sh"
