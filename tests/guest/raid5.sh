# The client's commands of the example in docs/manual/cluster.md, and what shows that they work. test_guest_md.py puts
# addresses and ports of its servers in the place of `s1 10809` and so on.

# Verified writes for some time, named $1, and how long one request took at most.
load() {
    echo "GUEST: load $1"
    fio --name=$1 --filename=/mnt/$1 --size=8m --rw=randwrite --bsrange=4k-64k --blockalign=4k --ioengine=psync \
        --direct=1 --numjobs=2 --offset_increment=8m --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
        --do_verify=1 --group_reporting --minimal > /tmp/fio || { cat /tmp/fio; false; }
    # Fields of fio's terse output; it warns before that two jobs write to one file.
    grep '^3;' /tmp/fio > /tmp/terse
    echo "GUEST: longest write $(cut -d ';' -f 80 /tmp/terse) us, read $(cut -d ';' -f 39 /tmp/terse) us ($1)"
}
# Data that was written before is read from the servers.
kept() {
    echo 3 > /proc/sys/vm/drop_caches
    md5sum -c /tmp/sums
}
# Waits until $1 is the state of md's work.
until_is() {
    while [ "$(cat /sys/block/md0/md/sync_action)" != "$1" ]; do
        grep % /proc/mdstat || true
        sleep 1
    done
}
# Waits until all members are up, and says when.
rebuild() {
    from=$(cut -d . -f 1 /proc/uptime)
    while [ "$(cat /sys/block/md0/md/degraded)" != 0 ]; do
        grep % /proc/mdstat || true
        sleep 1
    done
    echo "GUEST: rebuilt in $(($(cut -d . -f 1 /proc/uptime) - from)) s ($1)"
}
# md has dropped /dev/nbd$1, and the array goes on without it.
lost() {
    cat /proc/mdstat
    grep -q "nbd$1\[[0-9]*\](F)" /proc/mdstat
    grep -q '\[3/2\]' /proc/mdstat
    kept
}
# All members are up, and parity fits the data everywhere.
whole() {
    cat /proc/mdstat
    grep -q '\[3/3\] \[UUU\]' /proc/mdstat
    mdadm --detail /dev/md0
    kept
    echo check > /sys/block/md0/md/sync_action
    until_is idle
    cat /sys/block/md0/md/mismatch_cnt > /tmp/mismatches
    echo "GUEST: $(cat /tmp/mismatches) sectors do not match ($1)"
    [ "$(cat /tmp/mismatches)" = 0 ]
}

nbd-client s1 10809 /dev/nbd0 -N big -timeout 30 -nonetlink
nbd-client s2 10809 /dev/nbd1 -N big -timeout 30 -nonetlink
nbd-client s3 10809 /dev/nbd2 -N big -timeout 30 -nonetlink
mdadm --create /dev/md0 --level 5 --raid-devices 3 --chunk 64 --bitmap internal /dev/nbd0 /dev/nbd1 /dev/nbd2
rebuild created
mkfs.ext4 -q /dev/md0
mount -t ext4 /dev/md0 /mnt
dd if=/dev/urandom of=/mnt/kept bs=1M count=8
md5sum /mnt/kept > /tmp/sums
whole created

load killed
lost 2
mdadm /dev/md0 --remove /dev/nbd2
nbd-client -d /dev/nbd2
load degraded
echo GUEST: asks for s3
until nbd-client s3 10809 /dev/nbd2 -N big -timeout 30 -nonetlink; do sleep 1; done
mdadm /dev/md0 --re-add /dev/nbd2
rebuild returned
whole returned

load hung
lost 0
mdadm /dev/md0 --remove /dev/nbd0
nbd-client -d /dev/nbd0
echo GUEST: asks for s4
until nbd-client s4 10809 /dev/nbd3 -N big-s1 -timeout 30 -nonetlink; do sleep 1; done
mdadm /dev/md0 --add /dev/nbd3
rebuild replaced
whole replaced

umount /mnt
mdadm --stop /dev/md0
mdadm --assemble /dev/md0 /dev/nbd1 /dev/nbd2 /dev/nbd3
e2fsck -fn /dev/md0
mdadm --stop /dev/md0
nbd-client -d /dev/nbd1
nbd-client -d /dev/nbd2
nbd-client -d /dev/nbd3
