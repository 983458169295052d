# nbdinfo, nbdcopy, qemu-img and qemu-io see one and the same disk.
new_drives 5 96 4096
start_daemon
p group create tank --level raid5 --drives "$(join "${DRIVES[@]}")" --yes
p volume create tank/disk --size 200MiB
p export create tank/disk --nbd "unix:$NBD"
uri="nbd+unix:///tank/disk?socket=$NBD"

[[ $(nbdinfo --size "$uri") == 209715200 ]] || fail "nbdinfo sees another size"
nbdinfo --map "$uri" | grep 'hole,zero' >/dev/null || fail "a new volume is one hole"
head -c 50000000 /dev/urandom >"$DIR/image"
truncate -s 200M "$DIR/image"
nbdcopy "$DIR/image" "$uri"
qemu-img compare -f raw -F raw "$DIR/image" "$uri" || fail "qemu-img sees other bytes"
nbdcopy "$uri" "$DIR/copy"
cmp "$DIR/image" "$DIR/copy" || fail "nbdcopy reads other bytes"
qemu-io -f raw -c 'write -P 0xab 513 1000' -c 'write -z 1M 3M' -c 'discard 8M 4M' -c 'flush' "$uri" >/dev/null
qemu_reads() { qemu-io -f raw -c "read -P $1 513 1000" -c 'read -P 0 1M 3M' -c 'read -P 0 8M 4M' "$uri" >"$DIR/qemu-io" 2>&1; }
qemu_reads 0xab || fail "qemu-io reads other bytes: $(<"$DIR/qemu-io")"
if qemu_reads 0xac; then fail "qemu-io does not notice other bytes"; fi
p drive fail tank 3 --yes
qemu_reads 0xab || fail "qemu-io reads other bytes with a member lost: $(<"$DIR/qemu-io")"
nbdinfo --map --totals "$uri" | grep 'data' >/dev/null || fail "written space is shown as a hole"
