# fio verifies everything it wrote (crc32c) while two members of a RAID 6 fail, a spare takes over, and a drive is
# replaced; then every byte is read again.
new_drives 7 192
start_daemon
members=("${DRIVES[@]:0:6}")
p group create tank --level raid6 --drives "$(join "${members[@]}")" --spares "${DRIVES[6]}" --yes
p volume create tank/db --size 256MiB
p export create tank/db --nbd "unix:$NBD"

load() {
    fio --name="$1" --ioengine=nbd --uri="nbd+unix:///tank/db?socket=$NBD" --rw="$2" --bsrange="$3" --serialize_overlap=1 --offset="$4" \
        --size="$5" --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1 --randrepeat=0 --minimal >/dev/null
}
load random randwrite 4k-4k 0 96m &
first=$!
load sequential write 64k-256k 96m 96m &
second=$!
load mixed randrw 512-32k 192m 64m &
third=$!
sleep 0.3
p drive fail tank 1
sleep 0.5
p drive fail tank 4
wait "$first" || fail "random writes were not read back"
wait "$second" || fail "sequential writes were not read back"
wait "$third" || fail "mixed writes were not read back"
[[ $(json 'sum(m["state"]=="faulty" for m in d["members"])' group show tank) -le 1 ]] || fail "the spare was not taken"
p drive replace tank "$(json '[m["slot"] for m in d["members"] if m["state"]=="faulty"][0]' group show tank)" \
    --with "${DRIVES[1]}" --wipe-foreign --yes
wait_rebuilt tank

# Whatever is there now must survive the loss of two members that were there all along.
nbdcopy "nbd+unix:///tank/db?socket=$NBD" "$DIR/before"
p drive fail tank 0
p drive fail tank 2
nbdcopy "nbd+unix:///tank/db?socket=$NBD" "$DIR/after"
cmp "$DIR/before" "$DIR/after" || fail "the rebuilt members hold other bytes"
