#!/bin/bash
# Makes the images of this folder anew: NAME.sectors and blkid.txt. Needs root (a loop device for LVM) and the Debian packages
# e2fsprogs xfsprogs btrfs-progs f2fs-tools ntfs-3g exfatprogs dosfstools genisoimage cryptsetup-bin gdisk fdisk lvm2 bcache-tools
# python3. A .sectors file holds the size of the image, then each 512-byte sector of its first and last 1 MiB + 4 KiB
# that is not zero, behind its offset (u64, little endian).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
uuid=11223344-5566-4788-99aa-bbccddeeff00

image() { truncate -s "$2" "$1.img"; }
image ext2 1M;     mke2fs -q -t ext2 -L home-two -U $uuid ext2.img
image ext3 4M;     mke2fs -q -t ext3 -L home-three -U $uuid ext3.img
image ext4 4M;     mke2fs -q -t ext4 -L home-four -U $uuid ext4.img
image xfs 300M;    mkfs.xfs -q -L fast -m uuid=$uuid xfs.img
image btrfs 128M;  mkfs.btrfs -q -L butter -U $uuid btrfs.img
image f2fs 64M;    mkfs.f2fs -q -l flash -U $uuid f2fs.img
image ntfs 4M;     mkfs.ntfs -q -F -L windows ntfs.img
image exfat 4M;    mkfs.exfat exfat.img
image fat12 1M;    mkfs.vfat -F 12 -n TWELVE -i 1234abcd fat12.img
image fat16 16M;   mkfs.vfat -F 16 -n SIXTEEN -i 1234abcd fat16.img
image fat32 64M;   mkfs.vfat -F 32 -n THIRTYTWO -i 1234abcd fat32.img
image swap 1M;     mkswap -q -L swappy -U $uuid swap.img
image luks1 4M;    echo -n pw | cryptsetup -q luksFormat --type luks1 --uuid $uuid --iter-time 10 luks1.img -
image luks2 18M;   echo -n pw | cryptsetup -q luksFormat --type luks2 --label secret --uuid $uuid --pbkdf pbkdf2 \
                       --pbkdf-force-iterations 1000 luks2.img -
image gpt 4M;      sgdisk -U $uuid -n 1:2048:4095 -n 2:4096:6143 gpt.img
image mbr 4M;      printf 'label: dos\nstart=2048,size=2048,type=83\nstart=4096,size=1024,type=7\n' | sfdisk -q mbr.img
image bcache 4M;   make-bcache -B bcache.img
image blank 1M
mkdir folder && echo text > folder/file && genisoimage -quiet -V DISC -o iso9660.img folder
image lvm2 8M
loop=$(losetup -f --show lvm2.img)
pvcreate -q --devices "$loop" "$loop"
losetup -d "$loop"

for file in *.img; do
    name=${file%.img}
    answer=$(blkid -p -o export "$file" | grep -E '^(TYPE|UUID|LABEL|PTTYPE|PTUUID)=' | sort | tr '\n' ' ') || true
    echo "$name $answer"
done > "$here/blkid.txt"

python3 - "$here" <<'PYTHON'
import glob, os, struct, sys
near = (1 << 20) + 4096
boot_code = {"fat12": 62, "fat16": 62, "fat32": 90, "ntfs": 84, "exfat": 120}
for name in glob.glob("*.img"):
    data = open(name, "rb").read()
    with open(os.path.join(sys.argv[1], name[:-4] + ".sectors"), "wb") as out:
        out.write(struct.pack("<Q", len(data)))
        for at in range(0, len(data), 512):
            sector = data[at:at + 512]
            # Keys are random and of no use to the tests.
            if name.startswith("luks") and at >= 4096 and sector[:4] != b"SKUL":
                continue
            # Nor do tests need the boot code of the tools' authors, or what follows it.
            if name[:-4] in boot_code:
                if sector[510:] != b"\x55\xaa":
                    continue
                sector = sector[:boot_code[name[:-4]]].ljust(510, b"\0") + sector[510:]
            if (at < near or at >= len(data) - near) and any(sector):
                out.write(struct.pack("<Q", at) + sector)
PYTHON
