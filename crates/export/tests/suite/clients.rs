//! Third-party clients: libnbd and its tools, QEMU's tools, fio. If its tool is missing, a test
//! prints that and passes.

use std::fs;
use std::path::Path;

use crate::common::{Served, has, output, python_with_libnbd, run};

const MIB: u64 = 1 << 20;

/// Bytes that compress badly and do not repeat nearby.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn nbdinfo_lists_and_describes_the_exports() {
    if !has("nbdinfo") {
        return;
    }
    let (served, _, _) = Served::disk(64 * MIB);
    served.add("image", MIB, true);
    let list = run("nbdinfo", &["--list", &served.uri("")]);
    assert!(list.contains("export=\"disk\"") && list.contains("export=\"image\""), "{list}");
    let disk = run("nbdinfo", &[&served.uri("disk")]);
    for line in [
        "using structured packets",
        "export-size: 67108864",
        "description: for tests",
        "base:allocation",
        "is_read_only: false",
        "is_rotational: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(disk.contains(line), "{line} is missing in\n{disk}");
    }
    assert!(run("nbdinfo", &[&served.uri("image")]).contains("is_read_only: true"));
    assert!(!output("nbdinfo", &[&served.uri("nothing")]).status.success());
}

#[test]
fn nbdcopy_brings_an_image_there_and_back_with_its_holes() {
    if !has("nbdcopy") {
        return;
    }
    let (served, volume, _) = Served::disk(64 * MIB);
    let image = served.directory.join("image");
    let back = served.directory.join("back");
    // Data, a hole of 20 MiB, data up to an odd end.
    let mut bytes = noise(8 * MIB as usize, 1);
    bytes.resize(28 * MIB as usize, 0);
    bytes.extend(noise(4 * MIB as usize + 512, 2));
    let file = fs::File::create(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes[..8 * MIB as usize], 0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes[28 * MIB as usize..], 28 * MIB).unwrap();
    for connections in ["--connections=1", "--connections=4"] {
        run("nbdcopy", &[connections, "--flush", text(&image), &served.uri("disk")]);
        let _ = fs::remove_file(&back);
        run("nbdcopy", &[connections, &served.uri("disk"), text(&back)]);
        let read = fs::read(&back).unwrap();
        assert!(read[..bytes.len()] == bytes && read[bytes.len()..].iter().all(|&byte| byte == 0));
        // 12 MiB and the space for the odd end: the hole did not become data.
        assert!((12 * MIB..13 * MIB).contains(&volume.ram.allocated_bytes()), "{}", volume.ram.allocated_bytes());
    }
    assert!(volume.ram.flushes() > 0);
    run("nbdcopy", &[&served.uri("disk"), "null:"]);
}

#[test]
fn qemu_converts_compares_and_maps() {
    if !has("qemu-img") {
        return;
    }
    let (served, volume, _) = Served::disk(32 * MIB);
    let image = served.directory.join("image");
    let mut bytes = noise(6 * MIB as usize, 3);
    bytes.resize(32 * MIB as usize, 0);
    fs::write(&image, &bytes).unwrap();
    let uri = served.uri("disk");
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "8", text(&image), &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&image), &uri]);
    assert!(volume.ram.allocated_bytes() <= 7 * MIB, "zeroes stay holes: {}", volume.ram.allocated_bytes());
    let map = run("qemu-img", &["map", "--output=json", &uri]).replace(' ', "");
    assert!(map.contains("\"start\":0,\"length\":6291456") && map.contains("\"data\":false"), "{map}");
    assert!(run("qemu-img", &["info", &uri]).contains("virtual size: 32 MiB"));
}

#[test]
fn qemu_io_writes_zeroes_discards_and_flushes() {
    if !has("qemu-io") {
        return;
    }
    let (served, volume, _) = Served::disk(32 * MIB);
    let uri = served.uri("disk");
    let commands = [
        "write -P 0x5a 1000 100000",
        "read -P 0x5a 1000 100000",
        "read -P 0 0 1000",
        "write -f -P 0x77 1M 4M",
        "write -z -u 2M 1M",
        "read -P 0x77 1M 1M",
        "read -P 0 2M 1M",
        "read -P 0x77 3M 2M",
        "write -z 4M 64k",
        "discard 1M 1M",
        "read -P 0 1M 1M",
        "aio_write -P 1 8M 1M",
        "aio_write -P 2 9M 1M",
        "aio_flush",
        "read -P 1 8M 1M",
        "read -P 2 9M 1M",
        "flush",
    ];
    let mut arguments = vec!["-f", "raw"];
    for command in &commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(&uri);
    let said = run("qemu-io", &arguments);
    assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
    assert!(volume.ram.flushes() > 0 && volume.ram.durable_writes() > 0);
}

#[test]
fn fio_verifies_what_several_jobs_have_written() {
    if !has("fio") {
        return;
    }
    for shards in [1, 2] {
        let served = Served::start(export::ServerConfig::default(), false, shards);
        served.add("disk", 128 * MIB, false);
        let mut job = format!(
            "[global]\nioengine=nbd\nuri={}\nrw=randrw\nbsrange=512-128k\nbs_unaligned\nserialize_overlap=1\niodepth=16\nsize=24m\n\
             verify=crc32c\nverify_fatal=1\nverify_dump=0\n",
            served.uri("disk")
        );
        for index in 0..4 {
            job.push_str(&format!("[job{index}]\noffset={}m\n", index * 32));
        }
        let path = served.directory.join("verify.fio");
        fs::write(&path, job).unwrap();
        let said = run("fio", &[text(&path)]);
        assert_eq!(said.matches("err= 0").count(), 4, "{said}");
    }
}

/// Runs a script with `nbd` imported and `uri` set.
fn libnbd(served: &Served, script: &str) {
    let Some(python) = python_with_libnbd() else { return };
    let script = format!("import nbd\nuri = \"{}\"\n{script}", served.uri("disk"));
    let path = served.directory.join("script.py");
    fs::write(&path, script).unwrap();
    run(python, &[text(&path)]);
}

#[test]
fn libnbd_reads_in_chunks_and_learns_about_holes() {
    let (served, _, _) = Served::disk(16 * MIB);
    libnbd(
        &served,
        r#"
h = nbd.NBD()
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
assert h.get_structured_replies_negotiated() and h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.pwrite(b"\x55" * 65536, 1 << 20, nbd.CMD_FLAG_FUA)

seen = []
def chunk(data, offset, status, error):
    seen.append((offset, len(data), status))
data = h.pread_structured(4 << 20, 0, chunk)
assert data == bytes(1 << 20) + b"\x55" * 65536 + bytes((3 << 20) - 65536)
assert sorted(seen) == [
    (0, 1 << 20, nbd.READ_HOLE), (1 << 20, 65536, nbd.READ_DATA), ((1 << 20) + 65536, (3 << 20) - 65536, nbd.READ_HOLE)], seen
seen.clear()
assert h.pread_structured(4 << 20, 0, chunk, nbd.CMD_FLAG_DF) == data
assert seen == [(0, 4 << 20, nbd.READ_DATA)], seen

extents = []
def extent(context, offset, entries, error):
    assert context == "base:allocation"
    extents.append((offset, list(entries)))
h.block_status(16 << 20, 0, extent)
assert extents.pop() == (0, [1 << 20, 3, 65536, 0, (15 << 20) - 65536, 3])
h.block_status(8 << 20, 512, extent, nbd.CMD_FLAG_REQ_ONE)
assert extents.pop() == (512, [(1 << 20) - 512, 3])
h.trim(65536, 1 << 20)
h.block_status(16 << 20, 0, extent)
assert extents.pop() == (0, [16 << 20, 3])
h.zero(65536, 0, nbd.CMD_FLAG_NO_HOLE)
h.block_status(16 << 20, 0, extent)
assert extents.pop() == (0, [65536, 0, (16 << 20) - 65536, 3])
h.zero(65536, 0, nbd.CMD_FLAG_FAST_ZERO)
try:
    h.zero(65536, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
    assert False, "filling with zeroes is not fast"
except nbd.Error as error:
    assert error.errno == "EOPNOTSUPP" or error.errno == "ENOTSUP", error.errno
h.cache(4096, 0)
h.flush()

h.set_strict_mode(0)
for call, errno in [
    (lambda: h.pread(4096, (16 << 20) - 512), "EINVAL"),
    (lambda: h.pwrite(b"x" * 4096, (16 << 20) - 512), "ENOSPC"),
    (lambda: h.trim(4096, 16 << 20), "EINVAL"),
    (lambda: h.zero(4096, 16 << 20), "ENOSPC"),
]:
    try:
        call()
        assert False, errno
    except nbd.Error as error:
        assert error.errno == errno, (error.errno, errno)
h.shutdown()
"#,
    );
}

#[test]
fn libnbd_works_with_simple_replies_and_the_old_way_in() {
    let (served, _, _) = Served::disk(16 * MIB);
    libnbd(
        &served,
        r#"
for flags in (nbd.HANDSHAKE_FLAG_MASK, nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE, nbd.HANDSHAKE_FLAG_NO_ZEROES, 0):
    h = nbd.NBD()
    h.set_request_structured_replies(False)
    h.set_handshake_flags(flags)
    h.connect_uri(uri)
    assert not h.get_structured_replies_negotiated()
    h.pwrite(b"abc" * 1000, 77)
    assert h.pread(3000, 77) == b"abc" * 1000
    assert h.pread(1 << 20, 1 << 20) == bytes(1 << 20)
    h.shutdown()
"#,
    );
}

#[test]
fn a_flush_on_one_connection_covers_another() {
    let (served, volume, _) = Served::disk(16 * MIB);
    libnbd(
        &served,
        r#"
a, b = nbd.NBD(), nbd.NBD()
a.connect_uri(uri)
b.connect_uri(uri)
assert a.can_multi_conn() and b.can_multi_conn()
a.pwrite(b"1" * 4096, 0)
b.flush()
assert b.pread(4096, 0) == b"1" * 4096
a.shutdown()
b.shutdown()
"#,
    );
    if python_with_libnbd().is_some() {
        assert_eq!(volume.ram.flushes(), 1);
    }
}

#[test]
fn libnbd_haggles_about_exports() {
    let (served, _, _) = Served::disk(16 * MIB);
    served.add("image", MIB, true);
    libnbd(
        &served,
        r#"
h = nbd.NBD()
h.set_opt_mode(True)
h.set_full_info(True)
h.add_meta_context("base:")
h.connect_uri(uri)
names = []
h.opt_list(lambda name, text: names.append((name, text)))
assert names == [("disk", "for tests"), ("image", "for tests")], names
contexts = []
h.opt_list_meta_context(lambda name: contexts.append(name))
assert contexts == ["base:allocation"], contexts
h.set_export_name("nothing")
try:
    h.opt_info()
    assert False
except nbd.Error:
    pass
h.set_export_name("image")
h.opt_info()
assert h.is_read_only() and h.get_canonical_export_name() == "image" and h.get_export_description() == "for tests"
h.opt_go()
assert h.get_size() == 1 << 20 and h.get_block_size(nbd.SIZE_MAXIMUM) == 32 << 20
h.shutdown()
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(uri)
h.opt_abort()
"#,
    );
}
