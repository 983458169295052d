# What blktests does to block devices, as far as it is not about other drivers: the table in README.md says which of its tests stand for what here.
# drives: 4096 4096 4096
# limit: 240
modprobe ublk_drv
modprobe -a kyber-iosched bfq
start_daemon
p group create tank --level raid5 --strip 64KiB --drives "$(drives 1 3)" --yes >&2
p volume create tank/v --size 64MiB >&2
p volume create tank/w --size 16MiB >&2
p export create tank/v --ublk >&2
D=/dev/ublkb0 Q=/sys/block/ublkb0
echo "a stripe is $(<$Q/queue/optimal_io_size)"

# beside_fio WHAT FUNCTION: while fio writes and verifies.
beside_fio() {
    local load
    fio --name=load --filename=$D --ioengine=libaio --direct=1 --iodepth=16 --rw=randrw --bs=4k --size=16m --time_based --runtime=600 \
        --verify=crc32c --verify_backlog=64 --verify_fatal=1 --randseed=11 --eta=never --output=/run/fio &
    load=$!
    sleep 0.5
    "$2"
    fio_ends $load /run/fio
    echo "$1: verified"
}

schedulers() {
    local scheduler
    for scheduler in mq-deadline kyber bfq none bfq kyber mq-deadline none; do
        echo $scheduler >$Q/queue/scheduler
        [[ $(<$Q/queue/scheduler) == *"[$scheduler]"* || $(<$Q/queue/scheduler) == "$scheduler" ]] || fail "scheduler: $(<$Q/queue/scheduler)"
        [[ $scheduler == none ]] || echo $((RANDOM % 60 + 4)) >$Q/queue/nr_requests
        sleep 0.2
    done
}
beside_fio "schedulers and lengths of queues change" schedulers

processors() {
    for _ in 1 2 3; do
        echo 0 >/sys/devices/system/cpu/cpu1/online
        sleep 0.4
        echo 1 >/sys/devices/system/cpu/cpu1/online
        sleep 0.4
    done
}
beside_fio "a processor goes and comes" processors

devices() {
    local id
    for _ in 1 2 3 4 5; do
        p export create tank/w --ublk >&2
        dd if=/dev/purlin/tank/w of=/dev/null bs=64k count=4 iflag=direct status=none
        id=$(json '.exports[] | select(.volume == "tank/w") | .id' export list)
        p export delete "$id" >&2
    done
}
beside_fio "another device comes and goes" devices
echo "left: $(cd /sys/block && ls -d ublkb*) $(cd /dev && ls -d ublkc*)"

fio --name=flushes --filename=$D --ioengine=psync --direct=1 --rw=randwrite --bs=4k --size=8m --number_ios=300 --fsync=1 --minimal >/run/fio || fail "flushes"
echo "flushed 300 times"

# Given back and zeroed in all sizes, past the page cache and under it.
head -c 33554432 /dev/zero | tr '\0' '\377' >/run/image
dd if=/run/image of=$D bs=1M oflag=direct status=none
at=4096
for len in 4096 8192 12288 61440 65536 69632 131072 135168 393216 1048576 4210688; do
    for way in "" -z; do
        blkdiscard $way -o $at -l $len $D
        dd if=/dev/zero of=/run/image bs=4096 seek=$((at / 4096)) count=$((len / 4096)) conv=notrunc status=none
        at=$((at + len + 8192))
    done
done
((at < 33554432)) || fail "$at"
cmp -n 33554432 /run/image $D && dd if=$D bs=1M count=32 iflag=direct status=none | cmp - /run/image && echo "discards of all sizes are zeroes, and nothing else is"
dd if=$D of=/dev/null bs=1M count=1 skip=30 status=none
blkdiscard -o $((30 << 20)) -l 65536 $D
dd if=$D bs=64k skip=$((30 * 16)) count=1 status=none | cmp - <(head -c 65536 /dev/zero) && echo "the page cache knows"

# What waits is counted, and for how long: nobody answers meanwhile.
ticks() { tr -s ' ' <$Q/stat | sed 's/^ //' | cut -d' ' -f10; }
before=$(ticks)
kill -STOP "$DAEMON"
dd if=$D of=/dev/null bs=4k count=1 skip=100 iflag=direct status=none &
reader=$!
dd if=/dev/zero of=$D bs=4k count=1 seek=200 oflag=direct status=none &
writer=$!
inflight() { tr -s ' ' <$Q/inflight | sed 's/^ //'; }
waiting() { [[ $(inflight) == "1 1" ]]; }
wait_for 20 waiting
sleep 1.2
kill -CONT "$DAEMON"
wait $reader
wait $writer
echo "in flight: one read, one write, then $(inflight)"
(($(ticks) - before >= 1000)) && echo "a second of it is in the statistics"

# A partition table is read again: one partition from block 256 on, of 1024 blocks.
blkdiscard $D
{ head -c 446 /dev/zero; printf '\0\0\0\0\203\0\0\0\0\1\0\0\0\4\0\0'; head -c 48 /dev/zero; printf '\125\252'; head -c 3584 /dev/zero; } |
    dd of=$D bs=4k oflag=direct status=none
blockdev --rereadpt $D
[[ -b ${D}p1 ]] && echo "a partition of $(blockdev --getsize64 ${D}p1) bytes"
head -c 65536 /dev/urandom >/run/data
dd if=/run/data of=${D}p1 bs=64k oflag=direct status=none
dd if=$D bs=64k skip=16 count=1 iflag=direct status=none | cmp - /run/data && echo "lies where the table says"

# Killed, and deleted as soon as it is there again.
p export create tank/w --ublk >&2
stop_daemon KILL
start_daemon
for id in $(json '.exports[].id' export list); do p export delete "$id" >&2; done
gone() { ! ls -d /sys/block/ublkb* >/dev/null 2>&1 && ! ls -d /dev/ublkc* >/dev/null 2>&1; }
wait_for 20 gone
echo "killed and deleted: nothing is left"
dmesg | grep -E 'BUG:|WARNING:|blocked for more|ublkb.*(error|critical)' >&2 && fail "the kernel saw an error"
true
