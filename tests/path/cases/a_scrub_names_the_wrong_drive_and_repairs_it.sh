# Bytes of one member change behind the array's back: the scrub finds where, names the drive, and with --repair puts its
# bytes right; without, and where one parity cannot tell, it changes nothing.
NO_LOOP=yes
new_drives 6 64
start_daemon
p group create tank --level raid6 --drives "$(join "${DRIVES[@]}")" --yes >/dev/null
p volume create tank/v --size 64MiB >/dev/null
p export create tank/v --nbd "unix:$NBD" >/dev/null
uri="nbd+unix:///tank/v?socket=$NBD"
head -c 67108864 /dev/urandom >"$DIR/want"
nbdcopy --flush "$DIR/want" "$uri"
[[ $(json 'd["job"]["findings"]["mismatch_count"]' group scrub tank --wait) == 0 ]] || fail "a fresh group has differences"

rot() { head -c 4096 /dev/urandom | dd of="$1" bs=4096 seek=$((8 * 1024 * 1024 / 4096)) conv=notrunc status=none; }
rot "${DRIVES[3]}"
# Data and parity: that there was a scrub is noted before them and in the superblocks.
data() { dd if="${DRIVES[3]}" bs=1M skip=8 count=48 status=none | sha256sum; }
sum=$(data)
p group scrub tank --wait --output json >"$DIR/report" && fail "differences are left, and the command says it is well"
python3 - "$DIR/report" <<'PY' || fail "the drive was not named: $(cat "$DIR/report")"
import json, sys
places = json.load(open(sys.argv[1]))["job"]["findings"]["places"]
assert places and all(place["slot"] == 3 and not place["repaired"] for place in places), places
PY
[[ $(data) == "$sum" ]] || fail "a scrub without --repair changed the drive"
p group scrub tank --wait --repair >/dev/null || true
[[ $(json 'd["job"]["findings"]["mismatch_count"]' group scrub tank --wait) == 0 ]] || fail "not repaired"
nbdcopy "$uri" "$DIR/got"
cmp "$DIR/want" "$DIR/got" || fail "repaired to other bytes"
