# 16 TiB over sparse files: created and assembled in under 2 s each, within the memory that was promised, also once it was written all over:
# 2000 writes, nearly all of them the first to their zones, are to more blocks of checksums than are kept in memory.
files=()
for index in $(seq 10); do files+=("$DIR/big-$index"); done
start_daemon
began=$(milliseconds)
p group create big --level raid6 --drives "$(join "${files[@]}")" --create-files 2TiB --yes >/dev/null
made=$(($(milliseconds) - began))
p volume create big/v --size 15TiB >/dev/null
p export create big/v --nbd "unix:$DIR/nbd" >/dev/null
fio --name=all-over --ioengine=nbd --uri="nbd+unix:///big/v?socket=$DIR/nbd" --rw=randwrite --bs=4k --iodepth=32 --size=15t \
    --norandommap --number_ios=2000 >/dev/null
written=$(json 'd["resident_bytes"]' status --once)
p group stop big
began=$(milliseconds)
p group assemble "${files[@]}" >/dev/null
assembled=$(($(milliseconds) - began))
resident=$(json 'd["resident_bytes"]' status --once)
echo "measured: created in $made ms, assembled in $assembled ms, resident $((written >> 20)) MiB once written, $((resident >> 20)) MiB at the end"
((made < 2000)) || fail "created in $made ms"
((assembled < 2000)) || fail "assembled in $assembled ms"
((written < (175 + 20) << 20)) || fail "resident $written bytes once it was written"
((resident < (175 + 20) << 20)) || fail "resident $resident bytes"
