# purlind is killed in the middle of fio's writes to the kernel's NBD device, again and again, over NVMe drives of both block
# sizes: the group, the volume and the export come back by themselves, and what was flushed verifies.
# quick: kills, over NVMe drives
# drives: 4096 512 4096 512 4096
start_daemon
p group create tank --level raid6 --drives "$(drives 1 5)" --yes >&2
p volume create tank/v --size 128MiB >&2
p export create tank/v --nbd "unix:$NBD" >&2

# kept ROUND OPTIONS: 4 MiB that are written and flushed, with a sum in each block.
kept() {
    fio --name=kept --filename=/dev/nbd0 --ioengine=libaio --iodepth=8 --direct=1 --rw=write --bs=16k --size=4m \
        --randseed="$1" --verify=crc32c --verify_fatal=1 --verify_state_save=0 "${@:2}" >/run/kept || fail "fio: $(</run/kept)"
}
writes() { awk '{ print $5 }' /sys/block/nbd0/stat; }
are_under_way() { (($(writes) > before + 50)); }
for round in 1 2 3; do
    nbd_attach tank/v
    kept "$round" --do_verify=0 --end_fsync=1
    before=$(writes)
    # Beside it, in stripes of its own and to be interrupted.
    fio --name=noise --filename=/dev/nbd0 --ioengine=libaio --iodepth=8 --direct=1 --rw=randwrite --bs=4k \
        --offset=16m --size=64m --minimal >/run/noise 2>&1 &
    noise=$!
    wait_for 60 are_under_way
    stop_daemon KILL
    # The kernel keeps what it sent and has no answer to until the device is detached.
    nbd_detach
    if wait "$noise"; then fail "fio did not notice that the daemon was killed"; fi
    start_daemon
    nbd_attach tank/v
    kept "$round" --verify_only=1 && echo "round $round: what was flushed verifies"
    nbd_detach
done
echo "states: $(json '[.members[].state] | join(" ")' group show tank)"
echo "scrub: $(json .job.findings.mismatch_count group scrub tank --wait) differences"
