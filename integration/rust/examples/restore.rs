// SPDX-License-Identifier: GPL-2.0
//! Restore a guest from a snapshot file, record what it touches, and restore it once more with
//! that mapped ahead:
//!
//!     cargo run --release --example restore -- /tmp/snapshot
//!
//! A file that is not there is made, of 64 MiB.  Of it, the guest looks at one page of 16, a
//! quarter after the other, but not in order, and checks what it finds.  What the kernel can't
//! do is left out, and said.  The working set goes to the same name with `.ws`.

mod kvm;

use global_tdp::{enable, Features, Populate, Region, WorkingSet, PAGE_SIZE};
use kvm::{Mapping, Vcpu, Vm, MEM_GPA, STAMP};
use std::error::Error;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

const MIB: u64 = 64;
const PAGES: u64 = MIB << 8;
const STEP: u64 = 16;
const QUARTERS: [u64; 4] = [2, 0, 3, 1];
const REGION: Region = Region { gpa: MEM_GPA, size: PAGES * PAGE_SIZE };

/// What of it the kernel has, VMs get that have anything.
const WANTED: Features = Features::POPULATE.with(Features::PAGE_CACHE).with(Features::HARVEST);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What is done before the guest runs.
enum Before<'a> {
    Nothing,
    All,
    Set(&'a WorkingSet),
}

fn snapshot(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    // What is there is kept.
    let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
    match file.metadata()?.len() {
        0 => (),
        size if size == REGION.size => return Ok(file),
        _ => return Err(format!("it is not of {} MiB: remove it", MIB).into()),
    }
    let mut sink = BufWriter::new(&file);
    let mut page = [0; PAGE_SIZE as usize];
    for number in 0..PAGES as u32 {
        page[..4].copy_from_slice(&(STAMP + number).to_le_bytes());
        sink.write_all(&page)?;
    }
    sink.flush()?;
    drop(sink);
    Ok(file)
}

/// A VM with the snapshot for memory, and what it has of `wanted`.
fn restored(file: &File, wanted: Features) -> Result<(Vm, Vcpu, Features)> {
    let mut vm = Vm::new()?;
    let has = enable(&vm, wanted)?;
    vm.set_memory(Mapping::private(file)?)?;
    let vcpu = vm.vcpu()?;
    Ok((vm, vcpu, has))
}

fn look_at_quarter(vcpu: &mut Vcpu, quarter: u64) -> io::Result<()> {
    vcpu.look_at(quarter * PAGES / 4, PAGES / 4 / STEP, STEP)
}

/// Restore, prepare, run, and print a line of that.
fn measure(file: &File, what: &str, before: Before<'_>) -> Result<()> {
    let wanted = match before {
        Before::Nothing => Features::NONE,
        Before::All | Before::Set(_) => WANTED,
    };
    let (vm, mut vcpu, has) = restored(file, wanted)?;
    let start = Instant::now();
    match before {
        Before::Nothing => (),
        Before::All => {
            Populate::new(REGION.gpa, REGION.size).page_cache(has).run(&vm)?;
        }
        Before::Set(set) => {
            set.replay(&vm, has)?;
        }
    }
    let prepared = start.elapsed();
    let mapped = vm.mapped()?;
    let start = Instant::now();
    for quarter in QUARTERS {
        look_at_quarter(&mut vcpu, quarter)?;
    }
    let ran = start.elapsed();
    println!(
        "{:20} {:6} faults, {:6} pages mapped before; {:9} ns before, {:9} ns of the guest",
        what,
        vcpu.faults()?,
        mapped,
        prepared.as_nanos(),
        ran.as_nanos(),
    );
    Ok(())
}

/// Run a guest that does not fault, for all is populated, and see what it touches.
fn record(file: &File) -> Result<WorkingSet> {
    let (vm, mut vcpu, has) = restored(file, WANTED)?;
    let mut set = WorkingSet::new(&[REGION])?;
    Populate::new(REGION.gpa, REGION.size).page_cache(has).run(&vm)?;
    for quarter in QUARTERS {
        look_at_quarter(&mut vcpu, quarter)?;
        set.record(&vm)?;
    }
    println!("{:20} {:6} faults", "while it is recorded", vcpu.faults()?);
    Ok(set.first_touches())
}

/// What is known of this guest, to compare with.
fn touched() -> Result<WorkingSet> {
    let mut set = WorkingSet::new(&[REGION])?;
    for quarter in QUARTERS {
        let mut words = vec![0u64; (PAGES / 64) as usize];
        for n in 0..PAGES / 4 / STEP {
            let page = quarter * PAGES / 4 + n * STEP;
            words[(page / 64) as usize] |= 1 << (page % 64);
        }
        set.push(vec![words])?;
    }
    Ok(set)
}

fn run(path: &Path) -> Result<()> {
    let file = snapshot(path)?;
    let wanted = touched()?;
    let pages: u64 = (0..wanted.len()).map(|n| wanted.pages(n)).sum();
    println!("a guest of {} MiB touches {} pages of {}", MIB, pages, PAGES);
    let can = global_tdp::probe(&Vm::new()?)?;
    println!("this kernel has of Global TDP: {}", can);
    measure(&file, "nothing is mapped", Before::Nothing)?;
    if !can.contains(Features::POPULATE) {
        println!(
            "KVM_CAP_GLOBAL_TDP is missing: nothing can be mapped ahead, and nothing is lost"
        );
        return Ok(());
    }
    measure(&file, "all is populated", Before::All)?;
    if !can.contains(Features::HARVEST) {
        println!("KVM_GLOBAL_TDP_HARVEST is missing: no working set can be recorded");
        return Ok(());
    }
    let mut name = OsString::from(path);
    name.push(".ws");
    let place = PathBuf::from(name);
    record(&file)?.save(&place)?;
    let set = WorkingSet::load(&place)?;
    set.check_regions(&[REGION])?;
    let same = if set == wanted { "just those" } else { "NOT those" };
    println!(
        "recorded: {:?} pages, {} that were touched, in {} bytes",
        (0..set.len()).map(|n| set.pages(n)).collect::<Vec<_>>(),
        same,
        place.metadata()?.len(),
    );
    measure(&file, "the set is replayed", Before::Set(&set))
}

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let (path, more) = (arguments.next(), arguments.next());
    let path = match (path, more) {
        (Some(path), None) => PathBuf::from(path),
        _ => {
            eprintln!("usage: restore FILE");
            std::process::exit(2);
        }
    };
    if let Err(error) = run(&path) {
        eprintln!("restore: {}: {}", path.display(), error);
        std::process::exit(1);
    }
}
