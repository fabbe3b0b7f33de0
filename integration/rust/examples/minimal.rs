// SPDX-License-Identifier: GPL-2.0
//! A snapshot file is a VM's memory: have KVM map what the page cache holds of it.

#[allow(dead_code)]
mod kvm;

use global_tdp::{enable, Error, Features, Populate, Progress};
use kvm::{Mapping, Vm, MEM_GPA};
use std::fs::File;
use std::os::unix::io::AsRawFd;

/// Once memslots are set and the first vCPU has its CPUID.  What is left, its vCPUs fault on.
fn populate(vm: &impl AsRawFd, has: Features, gpa: u64, size: u64) -> Result<Progress, Error> {
    if !has.contains(Features::POPULATE) {
        return Ok(Progress { gpa, left: size, ..Progress::default() });
    }
    Populate::new(gpa, size).page_cache(has).run(vm)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = File::open(std::env::args().nth(1).ok_or("usage: minimal FILE")?)?;
    let mut vm = Vm::new()?;
    // Before the first vCPU: what of it the VM has, nothing where the kernel can't.
    let has = enable(&vm, Features::POPULATE | Features::PAGE_CACHE)?;
    vm.set_memory(Mapping::private(&file)?)?;
    let _vcpu = vm.vcpu()?;
    match populate(&vm, has, MEM_GPA, file.metadata()?.len()) {
        Ok(done) => println!("populated: {} bytes mapped, {} left", done.mapped, done.left),
        Err(error) => println!("populated: {}, {} left", error, error.progress().left),
    }
    Ok(())
}
