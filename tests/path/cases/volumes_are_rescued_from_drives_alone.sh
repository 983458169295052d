# The daemon is killed and as many drives are lost as the level survives: `purlin rescue` lists what is left, finds nothing
# else wrong and writes the volume, byte for byte, without a daemon and without writing to a drive. What is damaged is named.
NO_LOOP=yes
start_daemon

rescue() { env -i PATH="$PATH" purlin rescue "$@"; }

# findings OPTIONS DRIVES: what `rescue check` found: structure, slot and message, a line each.
findings() {
    { rescue check --output json "$@" 2>/dev/null || true; } | python3 -c '
import json, sys
for finding in json.load(sys.stdin)["findings"]:
    print(finding["structure"], finding["slot"], finding["drive"], finding["offset_bytes"], finding["message"])'
}

# status EXPECTED COMMAND: the command ends with this status. Its output is in $DIR/out, what it said in $DIR/said.
status() {
    local expected=$1 got=0
    shift
    "$@" >"$DIR/out" 2>"$DIR/said" || got=$?
    ((got == expected)) || fail "ended with $got instead of $expected: $*
$(cat "$DIR/out" "$DIR/said")"
}

declare -A drives_of lost_of
# new_group NAME COUNT "SLOTS TO LOSE" OPTIONS
new_group() {
    local name=$1 count=$2 lost=$3
    shift 3
    new_drives "$count" 16
    drives_of[$name]=${DRIVES[*]}
    lost_of[$name]=$lost
    p group create "$name" --drives "$(join "${DRIVES[@]}")" --yes "$@" >/dev/null
    p volume create "$name/other" --size 1MiB >/dev/null
    p volume create "$name/db" --size 9220KiB >/dev/null
    p export create "$name/db" --nbd "unix:$DIR/$name.sock" >/dev/null
}
new_group mirror 3 "0 2" --level raid1
new_group mirrors 4 "0 3" --level raid10
new_group single 4 "1" --level raid5
new_group double 5 "0 3" --level raid6
new_group triple 6 "0 1 5" --level raid7 --strip 16KiB
new_group wide 8 "1 2 4 7" --level nm --parity 4 --strip 4KiB
new_group nested 6 "1 5" --level raid50 --sets 2 --strip 128KiB

# Data, a hole, data up to the last byte of a volume that ends in the middle of everything.
head -c 3000000 /dev/urandom >"$DIR/want"
truncate -s $((9220 * 1024 - 300000)) "$DIR/want"
head -c 300000 /dev/urandom >>"$DIR/want"
for name in "${!drives_of[@]}"; do
    nbdcopy --flush "$DIR/want" "nbd+unix:///$name/db?socket=$DIR/$name.sock" &
done
wait $(jobs -p | grep -vx "$DAEMON")
stop_daemon KILL
times=$(stat -c "%n %y" "${FILES[@]}")

for name in "${!drives_of[@]}"; do
    read -ra all <<<"${drives_of[$name]}"
    status 0 rescue check --parity "${all[@]}"
    left=()
    for slot in "${!all[@]}"; do
        [[ " ${lost_of[$name]} " == *" $slot "* ]] || left=("${all[$slot]}" "${left[@]}")
    done
    status 0 rescue list --output json "${left[@]}"
    python3 - "$DIR/out" "$name" "${lost_of[$name]}" <<'PY' || fail "wrong list: $(cat "$DIR/out")"
import json, sys
report, name, lost = json.load(open(sys.argv[1])), sys.argv[2], [int(slot) for slot in sys.argv[3].split()]
group, = report["groups"]
assert (group["name"], group["health"], group["clean"]) == (name, "degraded", False), group
assert [member["slot"] for member in group["members"] if member["drive"] is None] == lost, group["members"]
assert [volume["name"] for volume in group["volumes"]] == [f"{name}/other", f"{name}/db"], group["volumes"]
assert group["volumes"][1]["size_bytes"] == 9220 * 1024 and group["volumes"][1]["lost_bytes"] == 0
assert group["exports"][0]["address"].endswith(f"/{name}.sock")
PY
    status 0 rescue extract "${left[@]}" --volume "$name/db" --to "$DIR/got"
    cmp "$DIR/want" "$DIR/got" || fail "$name: other bytes than were written"
    (($(stat -c %b "$DIR/got") < 9220 * 2 / 2)) || fail "$name: the hole was written"
    status 0 rescue extract "${left[@]}" --volume "$name/db" --to - && cmp "$DIR/want" "$DIR/out"
    status 2 rescue extract "${left[@]}" --volume "$name/db" --to "$DIR/got"
    grep -qF "$DIR/got exists; --force overwrites it" "$DIR/said" || fail "unclear: $(cat "$DIR/said")"
    rm "$DIR/got"
done
[[ $(stat -c "%n %y" "${FILES[@]}") == "$times" ]] || fail "a rescue wrote to a drive"

# A target that is one of the drives, under another name, is refused whatever is said.
read -ra double <<<"${drives_of[double]}"
ln -s "${double[4]}" "$DIR/innocent"
status 2 rescue extract "${double[@]}" --volume double/db --to "$DIR/innocent" --force
grep -q 'is one of the drives' "$DIR/said" || fail "unclear: $(cat "$DIR/said")"

# One too many is lost: nothing is written, unless a part is enough.
status 2 rescue extract "${double[@]:0:2}" --volume double/db --to "$DIR/got"
grep -q 'slots 2, 3, 4 are missing, and raid6 survives 2' "$DIR/said" || fail "unclear: $(cat "$DIR/said")"
[[ ! -e $DIR/got ]] || fail "a refused extraction left a file"
status 1 rescue extract "${double[@]:0:2}" --volume double/db --to "$DIR/got" --partial --output json
python3 - "$DIR/out" "$DIR/want" "$DIR/got" <<'PY' || fail "a part is wrong"
import json, sys
report = json.load(open(sys.argv[1]))
want, got = (bytearray(open(path, "rb").read()) for path in sys.argv[2:])
assert 0 < report["lost_bytes"] == sum(lost["len_bytes"] for lost in report["lost"]) < len(want)
for lost in report["lost"]:
    start, end = lost["offset_bytes"], lost["offset_bytes"] + lost["len_bytes"]
    assert not any(got[start:end])
    want[start:end] = bytes(end - start)
assert want == got
PY

# Whatever is damaged is named, with its place, and the volume is still whole.
damage() { head -c "$3" /dev/urandom | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
size=$((16 * 1024 * 1024))
damage "${double[0]}" 0 512
damage "${double[1]}" $((size - 4096)) 512
map=4096
[[ $(dd if="${double[2]}" bs=1 skip=$map count=8 status=none | tr -d '\0') == PurlinMB ]] || map=8192
damage "${double[2]}" $((map + 100)) 8
damage "${double[3]}" $((1024 * 1024)) 4096
findings --parity "${double[@]}" >"$DIR/found"
expect() { grep -qE "$1" "$DIR/found" || fail "not found: $1 in
$(cat "$DIR/found")"; }
expect "^superblock 0 ${double[0]} 0 the superblock at the head is damaged"
expect "^superblock 1 ${double[1]} $((size - 4096)) the superblock at the tail is damaged"
expect "^map 2 ${double[2]} $map slot [AB] of map block 0: the checksum"
expect "^stripe 3 ${double[3]} $((1024 * 1024)) damaged: not what was written there \(volume db\)"
! grep -vE "^(superblock [01]|map 2|stripe 3) " "$DIR/found" || fail "something else is wrong"
status 1 rescue check "${double[@]}"
status 0 rescue extract "${double[@]:0:3}" "${double[4]}" --volume double/db --to "$DIR/got" --force
cmp "$DIR/want" "$DIR/got" || fail "the damage was not worked around"

# What is no drive of Purlin's is named with what it is.
truncate -s 4M "$DIR/else"
if command -v mkfs.ext4 >/dev/null; then
    mkfs.ext4 -q "$DIR/else"
    status 0 rescue list "$DIR/else"
    grep -q 'holds ext4 file system' "$DIR/out" || fail "unclear: $(cat "$DIR/out")"
fi
status 2 rescue check "$DIR/else"
status 2 rescue list "$DIR/none"
