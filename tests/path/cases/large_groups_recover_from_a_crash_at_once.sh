# 16 TiB whose daemon is killed under random writes all over it: it is there again within 2 s, and so is what was flushed. With what a daemon
# keeps in memory over a kill, and without, as after a power cut.
files=()
for index in $(seq 10); do files+=("$DIR/big-$index"); done
start_daemon
p group create big --level raid6 --drives "$(join "${files[@]}")" --create-files 2TiB --yes >/dev/null
p volume create big/v --size 15TiB >/dev/null
p export create big/v --nbd "unix:$NBD" >/dev/null
load=(fio --ioengine=nbd "--uri=nbd+unix:///big/v?socket=$NBD" --rw=randwrite --bs=4k --iodepth=32 --norandommap --verify_state_save=0 --minimal)
flushed=("${load[@]}" --name=kept --size=7t --io_size=16m --randseed=7 --verify=crc32c --verify_fatal=1)
"${flushed[@]}" --do_verify=0 --end_fsync=1 >"$DIR/fio" 2>&1 || fail "fio: $(cat "$DIR/fio")"
# What overwrites something has to be put right after a crash: fio takes the same places each time.
noise=("${load[@]}" --name=noise --offset=7t --size=8t --randseed=8)
"${noise[@]}" --io_size=32m --end_fsync=1 >"$DIR/fio" 2>&1 || fail "fio: $(cat "$DIR/fio")"

# peak_mib: the most memory that the daemon ever had.
peak_mib() { echo $(($(awk '/^VmHWM:/ {print $2}' "/proc/$DAEMON/status") >> 10)); }
# crash WHAT WRITES_A_SECOND: kills the daemon under so much load, and measures until the group is there again, in $took. WHAT: `kept` or `lost`
# is what the daemon kept in memory.
crash() {
    "${noise[@]}" --thread --rate_iops="$2" --time_based --runtime=300 >/dev/null 2>&1 &
    local fio=$!
    HELPERS+=("$fio")
    sleep 2
    kill -0 "$fio" || fail "fio ended before the daemon was killed"
    stop_daemon KILL
    # It may go on for ever without its server.
    kill -s KILL "$fio" 2>/dev/null || true
    wait "$fio" 2>/dev/null || true
    [[ $1 == kept ]] || rm "$STATE"/*.kept
    local began
    # What it says from now on is of this recovery.
    : >"$DIR/daemon.log"
    began=$(milliseconds)
    start_daemon
    p group show big >/dev/null
    took=$(($(milliseconds) - began))
    records=$(grep -o ' records=.*' "$DIR/daemon.log" | cut -d= -f2 || true)
    echo "measured: there again $took ms after a crash at up to $2 writes a second, memory $1, ${records:=0} records, $(peak_mib) MiB at most"
}
for memory in kept lost; do
    # A machine may be busy with something else.
    for try in 1 2 3; do
        crash "$memory" 500
        ((records > 0)) || fail "there was nothing to recover"
        ((took >= 2000)) || break
    done
    ((took < 2000)) || fail "there again after $took ms at best, in $try tries"
    # What was in flight comes on top of that.
    crash "$memory" 1000000
done
"${flushed[@]}" --verify_only=1 >"$DIR/fio" 2>&1 || fail "fio does not find what it flushed: $(head -n 5 "$DIR/fio")"
