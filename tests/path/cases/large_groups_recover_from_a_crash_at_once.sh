# 16 TiB whose daemon is killed under random writes all over it: it is there again within 2 s, and so is what was flushed. With what a daemon
# keeps in memory over a kill, and without, as after a power cut.
files=()
for index in $(seq 10); do files+=("$DIR/big-$index"); done
start_daemon
p group create big --level raid6 --drives "$(join "${files[@]}")" --create-files 2TiB --yes >/dev/null
p volume create big/v --size 15TiB >/dev/null
p export create big/v --nbd "unix:$NBD" >/dev/null
uri="nbd+unix:///big/v?socket=$NBD"
# fio_job NAME OPTIONS: writes to places anywhere in the volume.
fio_job() {
    fio --name="$1" --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --iodepth=32 --size=15t --norandommap --verify_state_save=0 --minimal "${@:2}" >"$DIR/fio-$1" 2>&1
}
flushed=(kept --io_size=16m --randseed=7 --verify=crc32c --verify_fatal=1)
fio_job "${flushed[@]}" --do_verify=0 --end_fsync=1 || fail "fio: $(cat "$DIR/fio-kept")"

milliseconds() { echo $(($(date +%s%N) / 1000000)); }
# crash WHAT WRITES_A_SECOND: kills the daemon under so much load, and measures until the group is there again, in $took. WHAT: `kept` or `lost`
# is what the daemon kept in memory.
crashes=0
crash() {
    crashes=$((crashes + 1))
    fio_job noise --randseed="$crashes" --rate_iops="$2" --time_based --runtime=300 &
    HELPERS+=($!)
    sleep 2
    kill -0 "${HELPERS[-1]}" || fail "fio ended before the daemon was killed: $(cat "$DIR/fio-noise")"
    stop_daemon KILL
    wait "${HELPERS[-1]}" || true
    [[ $1 == kept ]] || rm "$STATE"/*.kept
    local began replayed
    began=$(milliseconds)
    start_daemon
    p group show big >/dev/null
    took=$(($(milliseconds) - began))
    replayed=$(grep -o 'replayed .*records=.*' "$DIR/daemon.log" | tail -n 1 | grep -o 'records=.*')
    echo "measured: there again $took ms after a crash at $2 writes a second at most, memory $1, $replayed"
}
for memory in kept lost; do
    crash "$memory" 500
    ((took < 2000)) || fail "there again after $took ms"
    # What was in flight comes on top of that.
    crash "$memory" 1000000
done
fio_job "${flushed[@]}" --verify_only=1 || fail "fio does not find what it flushed: $(cat "$DIR/fio-kept")"
