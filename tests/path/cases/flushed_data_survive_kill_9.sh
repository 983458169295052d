# The daemon is killed in the middle of writes, again and again: what was flushed is there afterwards, volumes and
# exports too, with nothing but the drives and under other names. SEED: chooses when it is killed.
RANDOM=${SEED:-1}
new_drives 6 128
start_daemon
p group create tank --level raid6 --drives "$(join "${DRIVES[@]}")" --yes
p volume create tank/db --size 128MiB
p export create tank/db --nbd "unix:$NBD"
uri="nbd+unix:///tank/db?socket=$NBD"
for round in 1 2 3 4 5; do
    head -c 8388608 /dev/urandom >"$DIR/want"
    nbdcopy --flush "$DIR/want" "$uri"
    # Writes beside the flushed part, to be interrupted.
    fio --name=noise --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --offset=16m --size=64m --iodepth=16 \
        --minimal >/dev/null 2>&1 &
    noise=$!
    sleep 0.$((RANDOM % 5 + 1))
    stop_daemon KILL
    wait "$noise" 2>/dev/null || true
    start_daemon
    nbdcopy "$uri" "$DIR/got"
    cmp -n 8388608 "$DIR/want" "$DIR/got" || fail "flushed data changed in round $round"
done
stop_daemon KILL
# The state directory is lost, and the drives come back in another order under other names.
rm -rf "$STATE"
if ((${#LOOPS[@]})); then
    for loop in "${LOOPS[@]}"; do losetup -d "$loop"; done
    LOOPS=() DRIVES=()
    for file in "${FILES[@]}"; do
        loop=$(losetup --find --show --direct-io=on "$file")
        LOOPS+=("$loop") DRIVES=("$loop" "${DRIVES[@]}")
    done
fi
start_daemon
p group assemble "${DRIVES[@]}"
nbdcopy "$uri" "$DIR/got"
cmp -n 8388608 "$DIR/want" "$DIR/got" || fail "the group lost data on the way to another machine"
[[ $(json 'd["volumes"][0]["name"]' volume list) == tank/db ]] || fail "the volume is gone"
