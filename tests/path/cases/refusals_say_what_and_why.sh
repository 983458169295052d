# Nothing is lost or half done by a request that cannot be: one sentence, word by word.
new_drives 6 64
start_daemon
a=${DRIVES[0]} b=${DRIVES[1]} c=${DRIVES[2]} d=${DRIVES[3]}
refuses 'purlin: there is no group "tank"' group show tank
refuses 'purlin: raid6 needs at least 4 members, not 3' group create tank --level raid6 --drives "$a,$b,$c" --yes
refuses "purlin: the drive \"$a\" is named twice" group create tank --level raid5 --drives "$a,$b,$a" --yes
refuses "purlin: $DIR/none does not exist" group create tank --level raid5 --drives "$a,$b,$DIR/none" --yes
if command -v mkfs.ext4 >/dev/null; then
    mkfs.ext4 -q -L precious "$d"
    p group create tank --level raid5 --drives "$a,$b,$d" --yes 2>"$DIR/said" && fail "a file system was overwritten"
    grep -q "ext4 file system" "$DIR/said" || fail "what is on the drive was not named: $(cat "$DIR/said")"
    [[ $(blkid -s LABEL -o value "$d") == precious ]] || fail "the refused request changed the drive"
fi
p group create tank --level raid5 --drives "$a,$b,$c" --dry-run
refuses 'purlin: there is no group "tank"' group show tank
p group create tank --level raid5 --drives "$a,$b,$c" --yes
p volume create tank/v --size 8MiB
refuses 'purlin: there is a volume "tank/v" already' volume create tank/v --size 8MiB
refuses 'purlin: there is no volume "tank/w"' export create tank/w --nbd "unix:$NBD"
refuses 'purlin: blocks of 1024 bytes: a block device has blocks of 512 or 4096' export create tank/v --ublk --block-size 1KiB
if [[ ! -e /dev/ublk-control ]]; then
    refuses 'purlin: this kernel has no block devices in user space: load its module ublk_drv (Linux 6.2 or newer)' \
        export create tank/v --ublk
fi
refuses "purlin: $b is part of the group \"tank\" already" \
    group create other --level raid5 --drives "$b,${DRIVES[4]},${DRIVES[5]}" --yes
p drive fail tank 0 --yes
refuses 'purlin: the group "tank" cannot do without slot 1: data would be lost' drive fail tank 1
p group stop tank
# The member that failed missed nothing here, but it cannot know: it is refused as stale, and the others do.
p group assemble "$c" "$a" "$b" >"$DIR/said" 2>&1
grep -q "$a is left out: stale" "$DIR/said" || fail "a stale member was taken: $(cat "$DIR/said")"
p group stop tank
p group assemble "$a" "$c" 2>"$DIR/said" && fail "assembled from too few"
grep -q 'raid5 survives 1' "$DIR/said" || fail "unclear: $(cat "$DIR/said")"
