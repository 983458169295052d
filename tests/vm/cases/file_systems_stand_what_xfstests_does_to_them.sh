# What xfstests' generic tests do to file systems, as far as the device below notices: the table in README.md says which of them stand for what here.
# What fsx does is in random_operations_read_back_exactly_while_drives_and_the_daemon_fail.
# drives: 4096 4096 4096 4096
# mib: 400
# limit: 300
modprobe ublk_drv
start_daemon
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2

# many N: files with their numbers in them are made, renamed, linked and removed, in a directory that others use as well.
many() {
    local file
    for file in $(seq "$1" 4 200); do
        echo "$file" >new.$file
        mv new.$file kept.$file
        ((file % 3 != 0)) || ln kept.$file link.$file
        ((file % 5 != 0)) || rm kept.$file
        ((file % 50 != 0)) || sync -f .
    done
}

for kind in ext4:96 xfs:320 btrfs:128; do
    size=${kind#*:} kind=${kind%:*}
    p volume create tank/$kind --size ${size}MiB >&2
    p export create tank/$kind --ublk >&2
    device=/dev/purlin/tank/$kind
    make_fs $kind $device >&2
    mount -t $kind $device /mnt
    cd /mnt

    # A chain of copies.
    head -c 3000001 /dev/urandom >copy.0
    for copy in $(seq 12); do
        cp copy.$((copy - 1)) copy.$copy
        ((copy % 4 != 0)) || echo 3 >/proc/sys/vm/drop_caches
        ((copy < 3)) || rm copy.$((copy - 2)) # copy.0 stays
    done
    # Many small files by four at the same time.
    makers=()
    for one in 1 2 3 4; do
        many $one &
        makers+=($!)
    done
    for maker in "${makers[@]}"; do wait "$maker" || fail "files over $kind"; done
    # The same file by maps, which fio takes from its begin only, through the page cache, past it, and with more in flight than the queue takes.
    fio --eta=never --output=/run/fio --size=4m --bs=4k --verify=crc32c --do_verify=1 --verify_fatal=1 --filename=mixed --randseed=3 \
        --name=mapped --rw=randwrite --ioengine=mmap --offset=0 \
        --name=cached --rw=randwrite --ioengine=psync --offset=4m \
        --name=direct --rw=randwrite --ioengine=libaio --direct=1 --iodepth=32 --offset=8m \
        --name=behind --rw=write --ioengine=libaio --direct=1 --iodepth=256 --offset=12m || { cat /run/fio >&2; fail "fio over $kind"; }
    # Frozen and thawed while it is written to.
    fio --name=frozen --rw=randwrite --bs=8k --size=4m --time_based --runtime=3 --ioengine=psync --fsync=8 --eta=never --output=/run/fio &
    load=$!
    for _ in 1 2 3 4; do
        sleep 0.3
        xfs_io -x -c freeze /mnt
        sleep 0.2
        xfs_io -x -c thaw /mnt
    done
    wait $load || fail "fio over $kind, frozen"
    # Full, a file that is there can be mapped and written all the same; not on btrfs, which writes nothing in place.
    head -c 65536 /dev/zero >mapped
    sync
    fill /mnt
    [[ $kind != btrfs ]] || rm fill
    xfs_io -c "mmap -rw 0 64k" -c "mwrite -S 0x61 0 64k" -c "msync -s" mapped
    rm -f fill room
    # It is shut down under what is not written, and takes up its log again: what was made durable is there. btrfs has no such end.
    xfs_io -f -c "pwrite -q -S 0x62 0 1m" -c fsync durable >&2
    xfs_io -f -c "pwrite -q -S 0x63 0 8m" lost >&2
    cd /
    [[ $kind == btrfs ]] || xfs_io -x -c shutdown /mnt
    umount /mnt
    mount -t $kind $device /mnt
    cd /mnt
    cmp durable <(head -c 1048576 /dev/zero | tr '\0' '\142')
    cmp mapped <(head -c 65536 /dev/zero | tr '\0' '\141')
    cmp copy.0 copy.11
    cmp copy.0 copy.12
    echo "$kind: $(ls kept.* | wc -l) kept, $(ls link.* | wc -l) links"
    for file in kept.* link.*; do
        [[ $(<"$file") == "${file#*.}" ]] || fail "$file over $kind"
    done
    cd /
    umount /mnt
    check_fs $kind $device >&2
    p export delete "$(json '.exports[0].id' export list)" >&2
    p volume delete tank/$kind --yes >&2
done
dmesg | grep -E 'BUG:|WARNING:|blocked for more|ublkb.*(error|critical)' >&2 && fail "the kernel saw an error"
p group scrub tank --wait >&2
echo "a scrub finds $(json '.job.findings.mismatch_count' group scrub tank --status)"
