# Volumes grow and shrink in use of their group; deleted space comes back and reads as zeroes in the next volume; what was
# made survives a restart.
new_drives 4 96
start_daemon
p group create tank --level raid10 --drives "$(join "${DRIVES[@]}")" --yes >/dev/null
for name in one two three; do
    p volume create "tank/$name" --size 32MiB >/dev/null
    p export create "tank/$name" --nbd "unix:$NBD" >/dev/null
    head -c 33554432 /dev/urandom >"$DIR/$name"
    nbdcopy --flush "$DIR/$name" "nbd+unix:///tank/$name?socket=$NBD"
done
[[ $(nbdinfo --list --json "nbd+unix:///?socket=$NBD" | grep -c export-name) == 3 ]] || fail "one socket offers three volumes"
id=$(json 'next(e["id"] for e in d["exports"] if e["volume"]=="tank/two")' export list)
refuses "purlin: the volume \"tank/two\" is exported as $id: delete that first" volume delete tank/two --yes
p export delete "$id"
p volume delete tank/two --yes
p volume resize tank/one --size 64MiB
p volume create tank/four --size 16MiB
p export create tank/four --nbd "unix:$DIR/four.sock" >/dev/null
nbdcopy "nbd+unix:///tank/four?socket=$DIR/four.sock" "$DIR/four"
cmp -n 16777216 "$DIR/four" /dev/zero || fail "a new volume shows an old one's bytes"
refuses 'purlin: this destroys the last 16 MiB of volume tank/three, and there is no terminal to ask on: say --yes to do it without asking' \
    volume resize tank/three --size 16MiB
p volume resize tank/three --size 16MiB --yes
stop_daemon TERM
start_daemon
nbdcopy "nbd+unix:///tank/one?socket=$NBD" "$DIR/got"
[[ $(stat -c %s "$DIR/got") == 67108864 ]] || fail "the new size was lost"
cmp -n 33554432 "$DIR/one" "$DIR/got" || fail "growing changed bytes"
cmp -i 33554432:0 -n 33554432 "$DIR/got" /dev/zero || fail "grown space is not zero"
nbdcopy "nbd+unix:///tank/three?socket=$NBD" "$DIR/got"
[[ $(stat -c %s "$DIR/got") == 16777216 ]] || fail "the smaller size was lost"
cmp -n 16777216 "$DIR/three" "$DIR/got" || fail "shrinking changed what was kept"
