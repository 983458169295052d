# The daemon is killed again and again under load, in its recovery too, and drives are pulled in between: out of the running
# group, with the kill, and while no daemon runs. What was flushed is there each time, as fio, a file system and a model of
# every block see it; what was under way is old or new. Drives that come back are rebuilt, under load and kills as well.
#
# KILLS: how many, 10 unless told. SEED: chooses what happens when (how far the load comes until then is the machine's
# business); SEED=$RANDOM tries something else. LEVEL, CRASH_SAFETY: of the group. THIN=yes: with thin volumes, compressed.
kills=${KILLS:-10}
# Within ten kills this one pulls drives out under load, with a kill and after one, kills a recovery, and gives drives back, both
# with what they had and emptied.
seed=${SEED:-36}
level=${LEVEL:-raid6}
safety=${CRASH_SAFETY:-on}
declare -A survives=([raid5]=1 [raid6]=2 [raid7]=3)
thin=()
[[ -z ${THIN:-} ]] || thin=(--thin --compress lz4)
echo "measured: SEED=$seed KILLS=$kills LEVEL=$level CRASH_SAFETY=$safety THIN=${THIN:-no}"
RANDOM=$seed
here=$PWD

# draw N: a number below N, in $drawn.
draw() { drawn=$((RANDOM % $1)); }

# --- Drives. The first two lie on FUSE, so that they can be pulled out of a running group: their server is ended.
count=6
declare -a server
fuse=yes
[[ -w /dev/fuse ]] && command -v fusermount3 nbdfuse nbdkit >/dev/null || fuse=
new_drives "$count" 128 4096
if [[ $fuse ]]; then
    for index in 0 1; do
        [[ ${DRIVES[index]} == /dev/* ]] && losetup -d "${DRIVES[index]}"
        mkdir "$DIR/fuse-$index"
        DRIVES[index]=$DIR/fuse-$index/nbd
    done
    LOOPS=("${LOOPS[@]:2}")
fi

is_fuse() { [[ ${DRIVES[$1]} == "$DIR"/fuse-* ]]; }

# plug INDEX: the drive is there, with what it had, if under another name.
plug() {
    local index=$1 try
    if is_fuse "$index"; then
        nbdfuse "${DRIVES[index]}" --command nbdkit -s --exit-with-parent file "${FILES[index]}" 2>>"$DIR/fuse.log" &
        server[index]=$!
        for try in $(seq 100); do
            [[ -s ${DRIVES[index]} ]] && return 0
            sleep 0.02
        done
        fail "the drive on FUSE does not come up"
    elif [[ ${DRIVES[index]} == /dev/* ]]; then
        DRIVES[index]=$(losetup --find --show --direct-io=on --sector-size 4096 "${FILES[index]}")
        LOOPS+=("${DRIVES[index]}")
    else
        mv "${FILES[index]}.away" "${FILES[index]}"
    fi
}

# unplug INDEX: the drive is gone. One that is not on FUSE only while no daemon has it open.
unplug() {
    local index=$1 loop loops=()
    if is_fuse "$index"; then
        kill "${server[index]}"
        wait "${server[index]}" 2>/dev/null || true
        server[index]=
        umount --lazy "$DIR/fuse-$index" 2>/dev/null || true
    elif [[ ${DRIVES[index]} == /dev/* ]]; then
        losetup -d "${DRIVES[index]}"
        for loop in "${LOOPS[@]}"; do [[ $loop == "${DRIVES[index]}" ]] || loops+=("$loop"); done
        LOOPS=("${loops[@]}")
    else
        mv "${FILES[index]}" "${FILES[index]}.away"
    fi
}

end_with_fuse() {
    local status=$1 process index
    mountpoint -q "$DIR/mnt" && umount --lazy "$DIR/mnt"
    [[ -n ${fs_loop:-} ]] && losetup -d "$fs_loop"
    for process in "${loads[@]:-}" "${server[@]:-}" "${fs_server:-}"; do
        [[ -n $process ]] && kill "$process" 2>/dev/null
    done
    for index in fuse-0 fuse-1 fs; do umount --lazy "$DIR/$index" 2>/dev/null; done
    (exit "$status")
    cleanup
}
trap 'status=$?; set +e; end_with_fuse "$status"' EXIT

if [[ $fuse ]]; then
    for index in 0 1; do plug "$index"; done
fi

# --- Volumes and what goes on in them.
start_daemon
p group create tank --level "$level" --crash-safety "$safety" --drives "$(join "${DRIVES[@]}")" --yes
declare -A uri
for volume in stamps fio fs; do
    p volume create "tank/$volume" --size 64MiB "${thin[@]}"
    p export create "tank/$volume" --nbd "unix:$NBD"
    uri[$volume]="nbd+unix:///tank/$volume?socket=$NBD"
done

# fio's volume has two jobs whose strips of 64 KiB take turns, so that what is flushed and left alone shares its stripes with
# what is being written. fio_job NAME OFFSET OPTIONS
fio_job() {
    local name=$1 offset=$2
    shift 2
    fio --name="$name" --ioengine=nbd --uri="${uri[fio]}" --offset="$offset" --size=62m --io_size=31m --zonemode=strided \
        --zonerange=64k --zonesize=64k --zoneskip=64k --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
        --minimal "$@" >"$DIR/fio-$name" 2>&1
}
kept_seed=1
keep() { fio_job kept 0 --rw=write --bs=16k --iodepth=8 --randseed="$kept_seed" --do_verify=0 --end_fsync=1; }
kept_is_there() { fio_job kept 0 --rw=write --bs=16k --iodepth=8 --randseed="$kept_seed" --verify_only=1; }

files=yes
[[ $fuse && ${#LOOPS[@]} -gt 0 ]] || files=
[[ $files ]] || echo "skipped: the file system (needs FUSE and loop devices)"
[[ $fuse ]] || echo "skipped: pulling drives out of the running group (needs FUSE)"
fs_server=
fs_loop=
# The file system's block device: a loop device over a file that is the volume.
fs_attach() {
    local try
    mkdir -p "$DIR/fs" "$DIR/mnt"
    nbdfuse "$DIR/fs/nbd" "${uri[fs]}" 2>>"$DIR/fuse.log" &
    fs_server=$!
    for try in $(seq 100); do
        [[ -s $DIR/fs/nbd ]] && break
        sleep 0.02
    done
    fs_loop=$(losetup --find --show "$DIR/fs/nbd") || fail "the volume cannot be attached (after $try looks)"
}
fs_detach() {
    if mountpoint -q "$DIR/mnt"; then umount "$DIR/mnt"; fi
    losetup -d "$fs_loop"
    fs_loop=
    kill "$fs_server" 2>/dev/null || true
    { wait "$fs_server" || true; } 2>/dev/null
    fs_server=
    umount --lazy "$DIR/fs" 2>/dev/null || true
}
# What a machine does that comes up again: the journal is replayed, then everything is looked at.
fs_is_whole() {
    fs_attach
    mount "$fs_loop" "$DIR/mnt" || fail "the file system cannot be mounted"
    "$here/files.py" check "$DIR/mnt" "$DIR/files.list" >>"$DIR/files.log" || fail "files were lost"
    umount "$DIR/mnt"
    e2fsck -fn "$fs_loop" >"$DIR/e2fsck" 2>&1 || fail "the file system is damaged: $(cat "$DIR/e2fsck")"
    fs_detach
}
if [[ $files ]]; then
    fs_attach
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$fs_loop"
    sync "$DIR/fs/nbd"
    fs_detach
fi

states() { json '" ".join(m["state"] for m in d["members"])' group show tank; }

# check ERRORS: everything is there. ERRORS: an option for stamps.py.
check() {
    "$here/stamps.py" check "${uri[stamps]}" "$DIR/stamps.model" $1 >>"$DIR/stamps.log" || fail "in round $round"
    kept_is_there || fail "fio does not find what it wrote, in round $round: $(cat "$DIR/fio-kept")"
    if [[ $files ]]; then fs_is_whole; fi
}

declare -A out done_count=([kill]=0 [recovery]=0 [with]=0 [dead]=0 [load]=0 [back]=0)
keep || fail "fio: $(cat "$DIR/fio-kept")"
round=0
while ((done_count[kill] < kills)); do
    round=$((round + 1))
    # What happens in this round: all of it is drawn before anything is done, so that a seed gives the same rounds.
    draw 10; event=$drawn
    draw "$count"; pulled=$drawn
    draw 10; give_back=$drawn
    draw 2; fresh=$drawn
    draw 4; again=$drawn
    draw 3; rewrite=$drawn
    draw 900; pause_ms=$((50 + drawn))
    draw 150; again_ms=$drawn
    # Blocks that divide a strip: one that is larger than what is left of its strip would go on in the other job's.
    draw 5; noise_bytes=$((4096 << drawn))

    missing=0
    for state in $(states); do [[ $state == in_sync ]] || missing=$((missing + 1)); done
    may_pull=
    ((missing < survives[$level] && !${out[$pulled]:-0})) && may_pull=yes
    pull=
    case $event in
    0 | 1) pull=dead ;;
    2) pull=with ;;
    3 | 4 | 5) pull=load ;;
    esac
    [[ $may_pull ]] || pull=
    [[ $pull != with && $pull != load ]] || is_fuse "$pulled" || pull=dead
    # Blocks under way on a drive that is lost in the same crash may be unreadable, but for strict crash safety.
    errors=
    [[ $safety == strict || ($pull != dead && $pull != with) ]] || errors=--errors

    if ((rewrite == 0)); then
        kept_seed=$((seed + round))
        keep || fail "fio: $(cat "$DIR/fio-kept")"
    fi
    loads=()
    "$here/stamps.py" load "${uri[stamps]}" "$DIR/stamps.model" $((seed + round)) >>"$DIR/stamps.log" &
    stamps=$!
    fio_job noise 64k --rw=randwrite --bs="$noise_bytes" --iodepth=16 --randseed=$((seed + round)) --verify_backlog=64 \
        --time_based --runtime=300 &
    noise=$!
    loads=("$stamps" "$noise")
    writer=
    # A block of the file system that cannot be read may be one that ext4 cannot do without.
    if [[ $files && ! $errors ]]; then
        fs_attach
        mount "$fs_loop" "$DIR/mnt"
        "$here/files.py" write "$DIR/mnt" "$DIR/files.list" $((seed + round)) >>"$DIR/files.log" &
        writer=$!
        loads+=("$writer")
    fi
    if ((give_back < 4)); then
        for index in "${!out[@]}"; do
            if ((fresh)); then
                file=${FILES[index]}
                [[ -e $file ]] || file=$file.away
                truncate -s 0 "$file"
                truncate -s 128M "$file"
            fi
            plug "$index"
            p drive replace tank "$index" --with "${DRIVES[index]}" --wipe-foreign --yes >>"$DIR/replace.log"
            unset "out[$index]"
            done_count[back]=$((done_count[back] + 1))
            break
        done
    fi
    sleep "$(printf '0.%03d' "$pause_ms")"
    if [[ $pull == load ]]; then
        unplug "$pulled"
        for try in $(seq 100); do
            read -ra now <<<"$(states)"
            [[ ${now[pulled]} == faulty ]] && break
            sleep 0.05
        done
        [[ ${now[pulled]} == faulty ]] || fail "a pulled drive is not noticed after $try looks"
        sleep 0.2
    fi
    kill -0 "$stamps" 2>/dev/null || fail "stamps.py ended before the daemon was killed, in round $round"
    kill -0 "$noise" 2>/dev/null || fail "fio ended before the daemon was killed, in round $round: $(cat "$DIR/fio-noise")"
    [[ $pull != with ]] || unplug "$pulled"
    stop_daemon KILL
    done_count[kill]=$((done_count[kill] + 1))
    wait "$stamps" || fail "in round $round"
    wait "$noise" || true
    ! grep -E 'verify(:| failed)' "$DIR/fio-noise" || fail "fio read something else than it wrote, in round $round"
    if [[ $writer ]]; then
        wait "$writer"
        fs_detach
    fi
    loads=()
    [[ $pull != dead ]] || unplug "$pulled"
    if [[ $pull ]]; then
        out[$pulled]=1
        done_count[$pull]=$((done_count[$pull] + 1))
    fi
    if ((again == 0)); then
        purlind --state "$STATE" --socket "$SOCKET" 2>>"$DIR/daemon.log" &
        DAEMON=$!
        sleep "$(printf '0.%03d' "$again_ms")"
        stop_daemon KILL
        done_count[kill]=$((done_count[kill] + 1))
        done_count[recovery]=$((done_count[recovery] + 1))
    fi
    start_daemon
    check "$errors"
done

# Everything comes back; then data and syndromes agree, and what is there is there without as many members as may be lost.
for index in "${!out[@]}"; do
    plug "$index"
    p drive replace tank "$index" --with "${DRIVES[index]}" --wipe-foreign --yes >>"$DIR/replace.log"
done
wait_rebuilt tank
p group scrub tank --wait >"$DIR/scrub" || fail "data and syndromes disagree: $(cat "$DIR/scrub")"
for ((index = 0; index < survives[$level]; index++)); do p drive fail tank $((2 * index)) --yes >/dev/null; done
check ""
echo "measured: ${done_count[kill]} kills in $round rounds, ${done_count[recovery]} of them in a recovery;" \
    "drives pulled: ${done_count[load]} under load, ${done_count[with]} with the kill, ${done_count[dead]} after it;" \
    "${done_count[back]} given back under load"
echo "measured: $(awk '/^stamps: .*writes/ {w += $2; f += $4} END {print w " writes and " f " flushes"}' "$DIR/stamps.log") followed block by block," \
    "$(awk '/written/ {n += $2} END {print n + 0}' "$DIR/files.log" 2>/dev/null || echo 0) files fsynced"
