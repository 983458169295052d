//! Shared by the tests of this crate: superblocks written from the kernel's structure, and arrays
//! laid out by tables.

#![allow(dead_code, reason = "each test binary uses its own part")]

use md::{Level, SECTOR};

/// A superblock to be written.
#[derive(Debug, Clone)]
pub struct Plain {
    pub features: u32,
    pub array: [u8; 16],
    pub name: &'static str,
    pub created_s: u64,
    pub level: i32,
    pub layout: u32,
    pub size: u64,
    pub chunk: u32,
    pub disks: u32,
    pub data_offset: u64,
    pub data_size: u64,
    pub super_offset: u64,
    pub recovery_offset: u64,
    pub number: u32,
    pub bad_shift: u8,
    pub bad_sectors: u16,
    pub bad_offset: i32,
    pub events: u64,
    pub resync_offset: u64,
    pub roles: Vec<u16>,
}

impl Plain {
    /// Member `number` of an array of `disks`, clean, version 1.2.
    pub fn new(level: i32, layout: u32, disks: u32, chunk: u32, size: u64, number: u32) -> Plain {
        Plain {
            features: 0,
            array: *b"an array's uuid.",
            name: "host:old",
            created_s: 1_700_000_000,
            level,
            layout,
            size,
            chunk,
            disks,
            data_offset: 64,
            data_size: size,
            super_offset: 8,
            recovery_offset: 0,
            number,
            bad_shift: 0,
            bad_sectors: 0,
            bad_offset: 0,
            events: 100,
            resync_offset: u64::MAX,
            roles: (0..disks as u16).collect(),
        }
    }

    /// Its bytes on a drive: `struct mdp_superblock_1`.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &0xA92B_4EFC_u32.to_le_bytes());
        put(4, &1_u32.to_le_bytes());
        put(8, &self.features.to_le_bytes());
        put(16, &self.array);
        put(32, self.name.as_bytes());
        put(64, &self.created_s.to_le_bytes());
        put(72, &self.level.to_le_bytes());
        put(76, &self.layout.to_le_bytes());
        put(80, &self.size.to_le_bytes());
        put(88, &self.chunk.to_le_bytes());
        put(92, &self.disks.to_le_bytes());
        put(128, &self.data_offset.to_le_bytes());
        put(136, &self.data_size.to_le_bytes());
        put(144, &self.super_offset.to_le_bytes());
        put(152, &self.recovery_offset.to_le_bytes());
        put(160, &self.number.to_le_bytes());
        put(168, &[self.number as u8; 16]);
        put(185, &[self.bad_shift]);
        put(186, &self.bad_sectors.to_le_bytes());
        put(188, &self.bad_offset.to_le_bytes());
        put(200, &self.events.to_le_bytes());
        put(208, &self.resync_offset.to_le_bytes());
        put(220, &(self.roles.len() as u32).to_le_bytes());
        for (index, role) in self.roles.iter().enumerate() {
            put(256 + 2 * index, &role.to_le_bytes());
        }
        seal(&mut bytes);
        bytes
    }
}

/// Corrects the checksum.
pub fn seal(bytes: &mut [u8]) {
    bytes[216..220].fill(0);
    let roles = u32::from_le_bytes(bytes[220..224].try_into().unwrap()) as usize;
    let mut sum = 0_u64;
    for word in bytes[..256 + 2 * roles].chunks(4) {
        let mut padded = [0; 4];
        padded[..word.len()].copy_from_slice(word);
        sum += u64::from(u32::from_le_bytes(padded));
    }
    let sum = ((sum & 0xFFFF_FFFF) + (sum >> 32)) as u32;
    bytes[216..220].copy_from_slice(&sum.to_le_bytes());
}

/// The content of one chunk of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    Data(u64),
    P(u64),
    Q(u64),
    Empty,
}

/// Rows of chunks, like the pictures in md(4): `table[row][disk]`.
pub type Table = Vec<Vec<Cell>>;

/// RAID 4, 5 and 6, row by row: P and Q go to their disks, and data chunks go to the others.
pub fn parity_table(level: Level, layout: u32, disks: usize, rows: u64) -> Table {
    let mut table = Vec::new();
    let mut next = 0;
    // The disk of P moves by one with each row.
    let turn = if layout >= 16 { disks - 1 } else { disks };
    let (mut down, mut up) = (turn - 1, 0);
    if layout == 9 {
        down = turn - 2;
    }
    for row in 0..rows {
        let mut cells = vec![Cell::Empty; disks];
        let six = level == Level::Raid6;
        let p = match layout {
            _ if level == Level::Raid4 => disks - 1,
            0 | 2 | 9 | 10 | 16 | 18 => down,
            1 | 3 | 8 | 17 | 19 => up,
            4 | 20 => 0,
            5 => disks - if six { 2 } else { 1 },
            other => panic!("{other}"),
        };
        cells[p] = Cell::P(row);
        let mut after = p;
        if six {
            let q = match layout {
                16.. => disks - 1,
                10 if p == 0 => disks - 1,
                10 => p - 1,
                _ => (p + 1) % disks,
            };
            cells[q] = Cell::Q(row);
            if layout < 10 {
                after = q;
            }
        }
        // Symmetric: data continues behind the parity, and wraps around.
        let symmetric = matches!(layout, 2 | 3 | 10 | 18 | 19) && level != Level::Raid4;
        let mut disk = if symmetric { (after + 1) % disks } else { 0 };
        for _ in 0..disks {
            if cells[disk] == Cell::Empty {
                cells[disk] = Cell::Data(next);
                next += 1;
            }
            disk = (disk + 1) % disks;
        }
        table.push(cells);
        down = if down == 0 { turn - 1 } else { down - 1 };
        up = (up + 1) % turn;
    }
    table
}

/// RAID 10: chunks are placed in turn, each `near` times. Then every row is copied, rotated by
/// `near` disks.
pub fn copies_table(near: usize, far: usize, offset: bool, disks: usize, rows: usize) -> Table {
    let (mut next, mut again) = (0, 0);
    let near_rows = rows / far;
    let mut first: Table = Vec::new();
    for _ in 0..near_rows {
        let mut cells = vec![Cell::Empty; disks];
        for cell in &mut cells {
            *cell = Cell::Data(next);
            again += 1;
            if again == near {
                (next, again) = (next + 1, 0);
            }
        }
        first.push(cells);
    }
    let turned = |cells: &Vec<Cell>, copy: usize| {
        let mut turned = cells.clone();
        turned.rotate_right(copy * near % disks);
        turned
    };
    if offset {
        first.iter().flat_map(|cells| (0..far).map(move |copy| turned(cells, copy)).collect::<Vec<_>>()).collect()
    } else {
        (0..far).flat_map(|copy| first.iter().map(move |cells| turned(cells, copy)).collect::<Vec<_>>()).collect()
    }
}

/// RAID 0 of disks with these numbers of chunks: row by row, over the disks that are long enough.
/// With `original`, a row that is shorter than the first is placed by the number of the chunk in
/// the array.
pub fn stripes_table(chunks: &[u64], original: bool) -> Table {
    let mut table: Table = Vec::new();
    let mut next = 0;
    for row in 0..*chunks.iter().max().unwrap() {
        let there: Vec<usize> = (0..chunks.len()).filter(|&disk| chunks[disk] > row).collect();
        let mut cells = vec![Cell::Empty; chunks.len()];
        for index in 0..there.len() {
            let turn = if original { next as usize % there.len() } else { index };
            cells[there[turn]] = Cell::Data(next);
            next += 1;
        }
        table.push(cells);
    }
    table
}

/// Multiplication in the field of RAID 6, bit by bit.
pub fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b > 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { 0x1D } else { 0 };
        b >>= 1;
    }
    product
}

/// The power of 2 in Q of each disk in a row.
pub fn power(layout: u32, cells: &[Cell], disk: usize) -> u32 {
    if matches!(layout, 8..=10) {
        return disk as u32;
    }
    // Counted from behind Q, over data only.
    let disks = cells.len();
    let q = cells.iter().position(|cell| matches!(cell, Cell::Q(_))).unwrap();
    let mut at = (q + 1) % disks;
    let mut power = 0;
    while at != disk {
        if matches!(cells[at], Cell::Data(_)) {
            power += 1;
        }
        at = (at + 1) % disks;
    }
    power
}

/// The disks of an array with the content `content`: their data, as the table lays them out.
pub fn lay_out(table: &Table, layout: u32, chunk_bytes: usize, content: &[u8]) -> Vec<Vec<u8>> {
    let disks = table[0].len();
    let mut images = vec![vec![0; table.len() * chunk_bytes]; disks];
    let strip = |chunk: u64| {
        let at = chunk as usize * chunk_bytes;
        let mut bytes = content.get(at..).map_or(Vec::new(), |rest| rest[..rest.len().min(chunk_bytes)].to_vec());
        bytes.resize(chunk_bytes, 0);
        bytes
    };
    for (row, cells) in table.iter().enumerate() {
        let (mut p, mut q) = (vec![0; chunk_bytes], vec![0; chunk_bytes]);
        for (disk, cell) in cells.iter().enumerate() {
            let Cell::Data(chunk) = cell else { continue };
            let bytes = strip(*chunk);
            let has_q = cells.iter().any(|cell| matches!(cell, Cell::Q(_)));
            let factor = if has_q { (0..power(layout, cells, disk)).fold(1, |value, _| times(value, 2)) } else { 0 };
            for at in 0..chunk_bytes {
                p[at] ^= bytes[at];
                q[at] ^= times(bytes[at], factor);
            }
            images[disk][row * chunk_bytes..][..chunk_bytes].copy_from_slice(&bytes);
        }
        for (disk, cell) in cells.iter().enumerate() {
            let place = row * chunk_bytes..(row + 1) * chunk_bytes;
            match cell {
                Cell::P(_) => images[disk][place].copy_from_slice(&p),
                Cell::Q(_) => images[disk][place].copy_from_slice(&q),
                _ => {}
            }
        }
    }
    images
}

/// Bytes that differ from block to block.
pub fn content(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(bytes).collect()
}

/// Bytes of a number of sectors.
pub fn bytes(sectors: u64) -> usize {
    (sectors * SECTOR) as usize
}
