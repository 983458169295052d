# A block of an NVMe drive cannot be read: the kernel has a "critical medium error", the client gets the right bytes, computed from
# the other drives, and the group counts it against that drive. So with blocks of 4096 bytes, and with one sector of 512.
# drives: 4096 4096 512 512
start_daemon
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2
p volume create tank/v --size 64MiB >&2
p export create tank/v --nbd "unix:$NBD" >&2
nbd_attach tank/v
# Every 4 KiB say which they are.
printf 'block %d is here\n' {1..256} | dd bs=4096 cbs=4096 conv=block of=/run/want status=none
dd if=/run/want of=/dev/nbd0 bs=64k oflag=direct conv=fsync status=none

# where N: the byte on drive N where a block of the volume lies. The last that looks so: before the data lies the log, which may
# have had it too.
where() {
    dd if="$(drive "$1")" bs=1M count=32 iflag=direct status=none | tr '\0' '\n' | grep -abo 'block [0-9]* is here' |
        tail -n 1 | cut -d: -f1
}
errors() { json '[.members[].errors | "\(.read_count)/\(.write_count + .other_count)"] | join(" ")' group show tank; }
compare() {
    dd if=/dev/nbd0 of=/run/got bs=64k count=16 iflag=direct status=none && cmp /run/want /run/got && echo "the client reads what it wrote"
}
medium_errors() { dmesg | grep -c "critical medium error, dev $1" || true; }

echo "read errors, and others, of each drive: $(errors)"
for n in 1 3; do
    offset=$(where "$n")
    [[ $offset ]] || fail "no block of the volume was found on drive $n"
    bytes=$(blockdev --getss "$(drive "$n")")
    host media-error "$n" "$offset" "$bytes"
    before=$(errors)
    compare
    # A drive that is late is not waited for: what it cannot read is seen afterwards, or with the next read.
    for _ in {1..40}; do
        [[ $(errors) == "$before" ]] || break
        sleep 0.25
        compare >/dev/null
    done
    (($(medium_errors "$(basename "$(drive "$n")")") > 0)) && echo "drive $n had an unreadable block of $bytes bytes"
    echo "read errors, and others, of each drive: $(errors)"
    host heal "$n"
done
echo "states: $(json '[.members[].state] | join(" ")' group show tank)"
p group show tank >&2
echo "left after a scrub: $(json .job.findings.mismatch_count group scrub tank --wait)"
compare
