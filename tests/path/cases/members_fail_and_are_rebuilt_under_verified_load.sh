# fio verifies everything it wrote (crc32c) while two members of a RAID 6 fail, a spare takes over, and a drive is
# replaced under load again; then every byte is read.
new_drives 7 192
start_daemon
members=("${DRIVES[@]:0:6}")
p group create tank --level raid6 --drives "$(join "${members[@]}")" --spares "${DRIVES[6]}" --yes
p volume create tank/db --size 256MiB
p export create tank/db --nbd "unix:$NBD"

load() {
    fio --name="$1" --ioengine=nbd --uri="nbd+unix:///tank/db?socket=$NBD" --rw="$2" --bsrange="$3" --serialize_overlap=1 --offset="$4" \
        --size="$5" --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1 --randrepeat=0 --minimal "${@:6}" >/dev/null
}
# at_work: every load is still at work, so what was done meanwhile was done to a group in use.
at_work() {
    local load
    for load in "${loads[@]}"; do kill -0 "$load" 2>/dev/null || fail "a load had ended before $1"; done
}
verified() {
    local load
    for load in "${loads[@]}"; do wait "$load" || fail "$1 were not read back"; done
}
# Each takes three seconds or more, on any machine.
load random randwrite 4k-4k 0 96m --rate_iops=8000 &
loads=($!)
load sequential write 64k-256k 96m 96m --rate=32m &
loads+=($!)
load mixed randrw 512-32k 192m 64m --rate=10m,10m &
loads+=($!)
sleep 0.3
p drive fail tank 1 --yes
at_work "the first member failed"
sleep 0.5
p drive fail tank 4 --yes
at_work "the second member failed"
verified "writes while members failed"
[[ $(json 'sum(m["state"]=="faulty" for m in d["members"])' group show tank) -le 1 ]] || fail "the spare was not taken"

load again randrw 4k-64k 0 192m --rate=24m,24m &
loads=($!)
sleep 0.3
p drive replace tank "$(json '[m["slot"] for m in d["members"] if m["state"]=="faulty"][0]' group show tank)" \
    --with "${DRIVES[1]}" --wipe-foreign --yes
at_work "the rebuild had begun"
wait_rebuilt tank
verified "writes during a rebuild"

# Whatever is there now must survive the loss of two members that were there all along.
nbdcopy "nbd+unix:///tank/db?socket=$NBD" "$DIR/before"
p drive fail tank 0 --yes
p drive fail tank 2 --yes
nbdcopy "nbd+unix:///tank/db?socket=$NBD" "$DIR/after"
cmp "$DIR/before" "$DIR/after" || fail "the rebuilt members hold other bytes"
