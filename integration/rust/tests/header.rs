// SPDX-License-Identifier: GPL-2.0
//! Sizes, offsets and numbers, against the series' own `<linux/kvm.h>`, by a C compiler:
//!
//!     GLOBAL_TDP_HEADERS=.../usr/include cargo test --test header -- --ignored

use global_tdp::abi::*;
use std::io::Write;
use std::mem::size_of;
use std::process::{Command, Stdio};

/// The offset of a field.
macro_rules! at {
    ($type:ty, $($field:ident),+) => {{
        let zero = std::mem::MaybeUninit::<$type>::zeroed();
        // SAFETY: all zeroes is a value of these structures.
        let it = unsafe { zero.assume_init() };
        let start = &it as *const _ as usize;
        [$((stringify!($field), std::ptr::addr_of!(it.$field) as usize - start)),+]
    }};
}

#[test]
#[ignore = "wants gcc and the series' headers in $GLOBAL_TDP_HEADERS"]
fn all_is_as_in_the_header() {
    let headers = std::env::var("GLOBAL_TDP_HEADERS").expect("GLOBAL_TDP_HEADERS");
    let mut wanted: Vec<(String, u64)> = vec![];
    let mut known = |name: &str, value: u32| wanted.push((name.into(), value.into()));
    known("KVM_CAP_GLOBAL_TDP", KVM_CAP_GLOBAL_TDP);
    known("KVM_CHECK_EXTENSION", KVM_CHECK_EXTENSION);
    known("KVM_ENABLE_CAP", KVM_ENABLE_CAP);
    known("KVM_POPULATE_MEMORY", KVM_POPULATE_MEMORY);
    known("KVM_HARVEST_ACCESSED", KVM_HARVEST_ACCESSED);
    known("KVM_POPULATE_ASYNC", KVM_POPULATE_ASYNC);
    known("KVM_POPULATE_PAGE_CACHE", KVM_POPULATE_PAGE_CACHE);
    known("KVM_POPULATE_BITMAP", KVM_POPULATE_BITMAP);
    for (name, bit) in [
        ("POPULATE", global_tdp::Features::POPULATE),
        ("FOLLOW", global_tdp::Features::FOLLOW),
        ("FAULT_AROUND", global_tdp::Features::FAULT_AROUND),
        ("PAGE_CACHE", global_tdp::Features::PAGE_CACHE),
        ("HARVEST", global_tdp::Features::HARVEST),
    ] {
        wanted.push((format!("KVM_GLOBAL_TDP_{}", name), bit.bits()));
    }
    let mut laid_out = |name: &str, size: usize, fields: &[(&str, usize)]| {
        wanted.push((format!("sizeof(struct {})", name), size as u64));
        for (field, at) in fields {
            wanted.push((format!("offsetof(struct {}, {})", name, field), *at as u64));
        }
    };
    let fields = at!(EnableCap, cap, flags, args, pad);
    laid_out("kvm_enable_cap", size_of::<EnableCap>(), &fields);
    let fields = at!(PopulateMemory, gpa, size, flags, as_id, mapped, absent, bitmap, reserved);
    laid_out("kvm_populate_memory", size_of::<PopulateMemory>(), &fields);
    let fields = at!(HarvestAccessed, gpa, size, flags, as_id, bitmap, accessed, reserved);
    laid_out("kvm_harvest_accessed", size_of::<HarvestAccessed>(), &fields);

    let mut source = String::from("#include <stddef.h>\n#include <linux/kvm.h>\n");
    for (what, value) in &wanted {
        source += &format!("_Static_assert({} == {}, \"{}\");\n", what, value, what);
    }
    let mut gcc = Command::new("gcc")
        .args(["-fsyntax-only", "-x", "c", "-isystem", &headers, "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("gcc");
    gcc.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(gcc.wait().unwrap().success(), "what gcc says is above");
}
