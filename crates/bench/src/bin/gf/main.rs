//! Compares `gf` with ISA-L: 8+2 encoding, the reconstruction of two data strips and CRC-32C, in
//! the cache and from memory. Operations without a counterpart in ISA-L are measured for `gf`
//! alone.
//!
//! Throughput counts the bytes of data strips, not the bytes written. "Cache" is one stripe over
//! and over; "memory" uses stripes that are in no cache. Strips are aligned to pages, as in an
//! array.

mod isal;

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use bench::pairs::{Pairs, measure_alone};
use clap::Parser;
use gf::{Code, Decoder, Kernel};
use isal::Isal;
use serde::Serialize;

/// Benchmarks gf and ISA-L (PURLIN_ISAL names the library; the system's libisal.so.2 otherwise).
#[derive(Parser)]
struct Arguments {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Number of alternating pairs; their median is reported
    #[arg(long, default_value_t = 101, value_parser = clap::value_parser!(u16).range(1..))]
    pairs: u16,
    /// Data strips
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(2..=62))]
    data: u8,
    /// Kernel: avx512-gfni, avx2, neon or scalar; default: the fastest
    #[arg(long)]
    kernel: Option<String>,
    /// Skip operations that have no counterpart in ISA-L
    #[arg(long)]
    peer_only: bool,
    /// Memory of the stripes of "memory"
    #[arg(long, default_value_t = 640, value_parser = clap::value_parser!(u64).range(1..))]
    memory_mib: u64,
}

#[derive(Serialize)]
struct Report {
    kernel: &'static str,
    isal_version: Option<String>,
    pairs: u16,
    data_strips: u8,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    operation: String,
    strip_kib: usize,
    place: &'static str,
    gf_gb_per_s: f64,
    isal_gb_per_s: Option<f64>,
    /// gf's speed divided by ISA-L's: least, median and most of the pairs.
    ratio: Option<[f64; 3]>,
}

/// Stripes in one piece of memory. Each strip is aligned to a page.
struct Stripes {
    memory: Vec<u8>,
    start: usize,
    strip_bytes: usize,
    strip_count: usize,
    stripe_count: usize,
    /// The first stripe of the next turn.
    next: usize,
}

const PAGE_BYTES: usize = 4096;

/// Number of blocks with checksums in the longest strip.
const SUMS_MAX: usize = (128 << 10) / gf::CRC32C_BLOCK;

/// Bytes that a turn of one contender reads and writes.
const TURN_BYTES: usize = 16 << 20;

impl Stripes {
    fn new(stripe_count: usize, strip_count: usize, strip_bytes: usize) -> Stripes {
        let mut memory = vec![0u8; stripe_count * strip_count * strip_bytes + PAGE_BYTES];
        // The content does not affect the speed. But the pages must exist, and must not all be the
        // same zero page.
        let mut state = 1u64;
        for word in memory.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&state.to_le_bytes());
        }
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        Stripes { memory, start, strip_bytes, strip_count, stripe_count, next: 0 }
    }

    /// Passes the next `count` stripes to `work`; the first stripe follows the last. `source_count`
    /// strips of each are for reading, the others for writing.
    fn turn(&mut self, count: usize, source_count: usize, work: &mut Work) {
        let stripe_bytes = self.strip_count * self.strip_bytes;
        for _ in 0..count {
            let stripe = &mut self.memory[self.start + self.next * stripe_bytes..][..stripe_bytes];
            let (sources, out) = stripe.split_at_mut(source_count * self.strip_bytes);
            let sources: Vec<&[u8]> = sources.chunks_exact(self.strip_bytes).collect();
            let mut out: Vec<&mut [u8]> = out.chunks_exact_mut(self.strip_bytes).collect();
            work(&sources, &mut out);
            self.next = (self.next + 1) % self.stripe_count;
        }
    }
}

/// The coefficients of a decoder's outputs for its sources: its outputs for a one in each source.
fn decoder_matrix(decoder: &Decoder) -> Vec<u8> {
    let (source_count, row_count) = (decoder.sources().len(), decoder.lost().len());
    let mut matrix = vec![0; row_count * source_count];
    for column in 0..source_count {
        let unit_vector: Vec<[u8; 1]> = (0..source_count).map(|source| [u8::from(source == column)]).collect();
        let unit_vector: Vec<&[u8]> = unit_vector.iter().map(|strip| &strip[..]).collect();
        let mut out = vec![[0u8; 1]; row_count];
        decoder.reconstruct(&unit_vector, &mut out.iter_mut().map(|strip| &mut strip[..]).collect::<Vec<_>>());
        for (row, value) in out.iter().enumerate() {
            matrix[row * source_count + column] = value[0];
        }
    }
    matrix
}

/// One kind of work on a stripe: it reads some strips and writes others.
type Work<'a> = Box<dyn FnMut(&[&[u8]], &mut [&mut [u8]]) + 'a>;

struct Bench<'a> {
    arguments: &'a Arguments,
    rows: Vec<Row>,
}

impl Bench<'_> {
    /// Measures `ours`, and `peers` for comparison if there is one, with both strip sizes, in the
    /// cache and from memory.
    fn measure(
        &mut self,
        operation: &str,
        source_count: usize,
        out_count: usize,
        mut ours: Work,
        mut peers: Option<Work>,
    ) {
        let strip_count = source_count + out_count;
        for strip_kib in [64, 128] {
            let strip_bytes = strip_kib << 10;
            let stripe_bytes = strip_count * strip_bytes;
            let memory_stripes = (self.arguments.memory_mib as usize * (1 << 20)).div_ceil(stripe_bytes);
            // Turns of about a millisecond: short compared with the disturbances of a busy machine,
            // long compared with the resolution of the clock.
            let turn_stripes = TURN_BYTES.div_ceil(stripe_bytes);
            for (place, stripe_count) in [("cache", 1), ("memory", memory_stripes)] {
                let stripes = RefCell::new(Stripes::new(stripe_count, strip_count, strip_bytes));
                let turn = |work: &mut Work| stripes.borrow_mut().turn(turn_stripes, source_count, work);
                let data_bytes = (turn_stripes * source_count * strip_bytes) as f64;
                let gb_per_s = |time: Duration| data_bytes / time.as_secs_f64() / 1e9;
                let pairs = usize::from(self.arguments.pairs);
                let row = match &mut peers {
                    Some(peers) => {
                        let measured = Pairs::measure(pairs, || turn(&mut ours), || turn(peers));
                        Row {
                            operation: operation.to_owned(),
                            strip_kib,
                            place,
                            gf_gb_per_s: gb_per_s(measured.ours()),
                            isal_gb_per_s: Some(gb_per_s(measured.peers())),
                            ratio: Some(measured.speed_ratio()),
                        }
                    }
                    None => Row {
                        operation: operation.to_owned(),
                        strip_kib,
                        place,
                        gf_gb_per_s: gb_per_s(measure_alone(pairs, || turn(&mut ours))),
                        isal_gb_per_s: None,
                        ratio: None,
                    },
                };
                self.rows.push(row);
            }
        }
    }
}

/// Writes the checksums of the blocks of all strips to `out`.
fn write_sums(strips: &[&[u8]], out: &mut [u8], sums_of: impl Fn(&[u8], &mut [u32])) {
    let mut places = out.chunks_exact_mut(size_of::<u32>());
    for strip in strips {
        let mut sums = [0; SUMS_MAX];
        let sums = &mut sums[..strip.len() / gf::CRC32C_BLOCK];
        sums_of(strip, sums);
        for (sum, place) in sums.iter().zip(&mut places) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// Panics unless both give the same result: otherwise a comparison of speeds is meaningless.
fn assert_same<'a>(source_count: usize, out_count: usize, ours: &mut Work<'a>, peers: &mut Work<'a>) {
    let mut stripes = Stripes::new(1, source_count + out_count, 1 << 16);
    let mut results = [Vec::new(), Vec::new()];
    for (result, work) in results.iter_mut().zip([ours, peers]) {
        stripes.turn(1, source_count, work);
        *result = stripes.memory[stripes.start + source_count * stripes.strip_bytes..].to_vec();
    }
    assert!(results[0] == results[1], "gf and ISA-L differ");
}

fn run(arguments: &Arguments, kernel: Kernel, isal: Option<&Isal>) -> Result<Vec<Row>, gf::CodeError> {
    let data_count = usize::from(arguments.data);
    let mut bench = Bench { arguments, rows: Vec::new() };
    let code = |parity_count| Code::with_kernel(data_count, parity_count, kernel);

    let raid6 = code(2)?;
    let mut ours: Work = Box::new(|data, parity_count| raid6.encode(data, parity_count));
    let mut peers: Option<Work> =
        isal.map(|isal| Box::new(|data: &[&[u8]], out: &mut [&mut [u8]]| isal.pq_gen(data, out)) as Work);
    if let Some(peers) = &mut peers {
        assert_same(data_count, 2, &mut ours, peers);
    }
    bench.measure(&format!("encode {data_count}+2"), data_count, 2, ours, peers);

    let decoder = raid6.decoder(&[0, data_count - 1])?;
    let matrix = decoder_matrix(&decoder);
    let mut ours: Work = Box::new(|sources, out| decoder.reconstruct(sources, out));
    let mut peers: Option<Work> = isal.map(|isal| {
        let tables = isal.tables(&matrix, data_count);
        Box::new(move |sources: &[&[u8]], out: &mut [&mut [u8]]| isal.encode_data(&tables, sources, out)) as Work
    });
    if let Some(peers) = &mut peers {
        assert_same(data_count, 2, &mut ours, peers);
    }
    bench.measure(&format!("{data_count}+2, two data strips lost"), data_count, 2, ours, peers);

    // Four parity strips of gf, compared with the same matrix in ISA-L.
    let wide = code(4)?;
    let matrix: Vec<u8> =
        (0..4).flat_map(|row| (0..data_count).map(move |index| gf::coefficient(4, row, index))).collect();
    let mut ours: Work = Box::new(|data, parity_count| wide.encode(data, parity_count));
    let mut peers: Option<Work> = isal.map(|isal| {
        let tables = isal.tables(&matrix, data_count);
        Box::new(move |sources: &[&[u8]], out: &mut [&mut [u8]]| isal.encode_data(&tables, sources, out)) as Work
    });
    if let Some(peers) = &mut peers {
        assert_same(data_count, 4, &mut ours, peers);
    }
    bench.measure(&format!("encode {data_count}+4"), data_count, 4, ours, peers);

    let mut ours: Work = Box::new(|data, out| write_sums(data, out[0], gf::crc32c_blocks));
    let mut peers: Option<Work> = isal.map(|isal| {
        let one_by_one = |strip: &[u8], sums: &mut [u32]| {
            strip.chunks_exact(gf::CRC32C_BLOCK).zip(sums).for_each(|(block, sum)| *sum = isal.crc32c(block));
        };
        Box::new(move |data: &[&[u8]], out: &mut [&mut [u8]]| write_sums(data, out[0], one_by_one)) as Work
    });
    if let Some(peers) = &mut peers {
        assert_same(data_count, 1, &mut ours, peers);
    }
    let crc32c = gf::crc32c_kernels().next().expect("the table runs everywhere").name();
    bench.measure(&format!("CRC-32C of 4 KiB blocks ({crc32c})"), data_count, 1, ours, peers);

    if !arguments.peer_only {
        for parity_count in [1, 3] {
            let code = code(parity_count)?;
            let work: Work = Box::new(move |data, parity_count| code.encode(data, parity_count));
            bench.measure(&format!("encode {data_count}+{parity_count}"), data_count, parity_count, work, None);
        }
        for parity_count in [1, 2, 3, 4] {
            let code = code(parity_count)?;
            let work: Work = Box::new(move |data, out| code.update(1, data[0], data[1], out));
            bench.measure(&format!("update {data_count}+{parity_count} (old + new)"), 2, parity_count, work, None);
        }
    }
    Ok(bench.rows)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let kernel = match &arguments.kernel {
        None => gf::kernels().next(),
        Some(name) => gf::kernels().find(|kernel| kernel.name() == name),
    };
    let Some(kernel) = kernel else {
        eprintln!("gf: this CPU has no such kernel; it has {:?}", gf::kernels().map(Kernel::name).collect::<Vec<_>>());
        return ExitCode::FAILURE;
    };
    let isal = Isal::load();
    if let Err(error) = &isal {
        eprintln!("gf: no ISA-L to compare with: {error}");
    }
    let isal = isal.ok();
    let rows = match run(&arguments, kernel, isal.as_ref()) {
        Ok(rows) => rows,
        Err(error) => {
            eprintln!("gf: {error}");
            return ExitCode::FAILURE;
        }
    };
    let report = Report {
        kernel: kernel.name(),
        isal_version: isal.map(|isal| isal.version().to_owned()),
        pairs: arguments.pairs,
        data_strips: arguments.data,
        rows,
    };
    print(&report, arguments.json);
    ExitCode::SUCCESS
}

fn print(report: &Report, json: bool) {
    if json {
        println!("{}", serde_json::to_string_pretty(report).expect("a report is plain data"));
        return;
    }
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["operation", "strip", "place", "gf GB/s", "ISA-L GB/s", "gf / ISA-L (least - most)"]);
    for row in &report.rows {
        table.add_row([
            row.operation.clone(),
            format!("{} KiB", row.strip_kib),
            row.place.to_owned(),
            format!("{:.1}", row.gf_gb_per_s),
            row.isal_gb_per_s.map_or_else(String::new, |speed| format!("{speed:.1}")),
            row.ratio.map_or_else(String::new, |[least, median, most]| format!("{median:.2} ({least:.2} - {most:.2})")),
        ]);
    }
    println!("kernel {}; ISA-L {}", report.kernel, report.isal_version.as_deref().unwrap_or("missing"));
    println!("{table}");
}
