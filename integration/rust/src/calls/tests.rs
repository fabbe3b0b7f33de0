// SPDX-License-Identifier: GPL-2.0
//! The loops, with closures for a kernel.

use super::*;

const MIB: u64 = 1 << 20;

fn errno(number: i32) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(number))
}

/// As the kernel does: what is done is moved over, and the bitmap with it.
fn moves(range: &mut abi::PopulateMemory, bytes: u64) {
    range.gpa += bytes;
    range.size -= bytes;
    range.mapped = bytes;
    range.absent = 0;
    if range.bitmap != 0 {
        range.bitmap += bytes / WORD_SIZE * 8;
    }
}

fn no_matter(_: &Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn one_call_does_all() {
    let mut calls = 0;
    let done = Populate::new(MIB, 3 * MIB).drive(no_matter, |range| {
        calls += 1;
        assert_eq!((range.gpa, range.size, range.flags), (MIB, 3 * MIB, 0));
        moves(range, 2 * MIB);
        range.gpa += MIB;
        range.size -= MIB;
        range.absent = MIB;
        Ok(())
    });
    let wanted = Progress { gpa: 4 * MIB, left: 0, mapped: 2 * MIB, absent: MIB, accessed: 0 };
    assert_eq!((calls, done.unwrap()), (1, wanted));
}

#[test]
fn what_was_interrupted_goes_on() {
    let mut calls = 0;
    let done = Populate::new(0, 4 * MIB).drive(no_matter, |range| {
        calls += 1;
        assert_eq!(range.gpa, [0, MIB, MIB, 2 * MIB][calls - 1]);
        match calls {
            1 => {
                moves(range, MIB);
                errno(libc::EINTR)
            }
            // Nothing done, and the figures of the call before still there.
            2 => errno(libc::EAGAIN),
            3 => {
                moves(range, MIB);
                errno(libc::EAGAIN)
            }
            _ => {
                moves(range, 2 * MIB);
                Ok(())
            }
        }
    });
    assert_eq!((calls, done.unwrap().mapped), (4, 4 * MIB));
}

#[test]
fn what_stays_in_the_way_has_an_end() {
    let mut calls = 0;
    let populate = Populate::new(0, 4 * MIB).attempts(5);
    let done = populate.drive(no_matter, |range| {
        calls += 1;
        // Something is done after a while, which has all be counted anew.
        if calls == 4 {
            moves(range, MIB);
        }
        errno(libc::EAGAIN)
    });
    let error = done.unwrap_err();
    assert!(matches!(error, Error::Stuck { attempts: 5, .. }), "{}", error);
    assert_eq!(calls, 4 + 1 + 5);
    assert_eq!((error.progress().gpa, error.progress().left), (MIB, 3 * MIB));
    assert!(error.is_temporary());
    assert!(error.to_string().contains("at 0x100000"), "{}", error);
}

#[test]
fn other_errors_end_it_and_say_how_far() {
    let known = [libc::ENOENT, libc::ENOMEM, libc::ENXIO, libc::EOPNOTSUPP, libc::EINVAL];
    for number in known {
        let mut calls = 0;
        let done = Populate::new(0, 2 * MIB).drive(no_matter, |range| {
            calls += 1;
            moves(range, MIB);
            errno(number)
        });
        let error = done.unwrap_err();
        assert_eq!((calls, error.errno()), (1, Some(number)));
        assert_eq!((error.progress().mapped, error.progress().left), (MIB, MIB));
        let temporary = [libc::ENOMEM, libc::ENXIO].contains(&number);
        assert_eq!(error.is_temporary(), temporary, "{}", error);
    }
}

#[test]
fn pieces_tell_and_can_be_stopped() {
    let mut heard = vec![];
    let populate = Populate::new(0, 3 * MIB + PAGE_SIZE).step(MIB - 1);
    let done = populate.drive(
        |progress| {
            heard.push(progress.gpa);
            ControlFlow::Continue(())
        },
        |range| {
            moves(range, range.size);
            Ok(())
        },
    );
    assert_eq!(done.unwrap().mapped, 3 * MIB + PAGE_SIZE);
    assert_eq!(heard, [MIB, 2 * MIB, 3 * MIB, 3 * MIB + PAGE_SIZE]);

    let stopped = populate.drive(
        |_| ControlFlow::Break(()),
        |range| {
            moves(range, range.size);
            Ok(())
        },
    );
    assert_eq!(stopped.unwrap().left, 2 * MIB + PAGE_SIZE);
}

#[test]
fn the_bitmap_goes_along() {
    let words: Vec<u64> = (0..12).collect();
    let first = words.as_ptr() as u64;
    let mut given = vec![];
    let populate = Populate::new(MIB, 3 * MIB).only(&words).step(MIB);
    let populate = populate.page_cache(Features::PAGE_CACHE);
    let done = populate.drive(no_matter, |range| {
        assert_eq!(range.flags, abi::KVM_POPULATE_BITMAP | abi::KVM_POPULATE_PAGE_CACHE);
        given.push((range.bitmap - first) / 8);
        // The second piece in two calls.
        let bytes = if given.len() == 2 { MIB / 2 } else { range.size };
        moves(range, bytes);
        if given.len() == 2 {
            return errno(libc::EINTR);
        }
        Ok(())
    });
    assert_eq!(done.unwrap().left, 0);
    assert_eq!(given, [0, 4, 6, 8]);
}

#[test]
fn what_the_kernel_would_read_beyond_is_refused() {
    let words = [0; 3];
    let wrong = [
        Populate::new(0, MIB).only(&words),
        Populate::new(PAGE_SIZE, PAGE_SIZE).only(&words),
        Populate::new(0, 7).only(&words),
        Populate::new(!0 - WORD_SIZE + 1, WORD_SIZE).only(&words),
    ];
    for populate in wrong {
        let done = populate.drive(no_matter, |_| panic!("it was called"));
        assert!(matches!(done, Err(Error::Argument(_))));
    }
    let fits = Populate::new(0, 3 * WORD_SIZE).only(&words);
    assert!(fits.drive(no_matter, |_| Ok(())).is_ok());
}

#[test]
fn the_page_cache_is_asked_for_if_the_vm_has_it() {
    for (has, flags) in [(Features::POPULATE, 0), (Features::PAGE_CACHE, 2)] {
        let populate = Populate::new(0, MIB).page_cache(has).address_space(1);
        let done = populate.drive(no_matter, |range| {
            assert_eq!((range.flags, range.as_id, range.bitmap), (flags, 1, 0));
            moves(range, MIB);
            Ok(())
        });
        assert!(done.is_ok());
    }
}

#[test]
fn the_kernels_thread_takes_no_bitmap() {
    let nowhere = std::fs::File::open("/dev/null").unwrap();
    let with_bitmap = Populate::new(0, WORD_SIZE).only(&[0]);
    let with_cache = Populate::new(0, MIB).page_cache(Features::PAGE_CACHE);
    for populate in [with_bitmap, with_cache] {
        assert!(matches!(populate.hand_over(&nowhere), Err(Error::Argument(_))));
    }
}

/// Sets the first bit of each word that it moves over.
fn tells(range: &mut abi::HarvestAccessed, bytes: u64) {
    let words = bytes / WORD_SIZE;
    for word in 0..words {
        // SAFETY: as the kernel would, within what it was given.
        unsafe { *(range.bitmap as *mut u64).add(word as usize) = 1 };
    }
    range.gpa += bytes;
    range.size -= bytes;
    range.bitmap += words * 8;
    range.accessed = words * PAGE_SIZE;
}

#[test]
fn a_harvest_is_whole() {
    let (mut words, mut calls) = (vec![!0; 99], 0);
    let done = Harvest::new(0, MIB).drive(&mut words, |range| {
        calls += 1;
        tells(range, MIB / 2);
        if calls == 1 {
            return errno(libc::EINTR);
        }
        Ok(())
    });
    let progress = done.unwrap();
    assert_eq!((words, calls), (vec![1; 4], 2));
    assert_eq!((progress.accessed, progress.left), (4 * PAGE_SIZE, 0));
}

#[test]
fn a_harvest_that_fails_keeps_what_it_has() {
    let mut words = vec![!0];
    let done = Harvest::new(0, MIB).drive(&mut words, |range| {
        tells(range, MIB / 2);
        errno(libc::EOPNOTSUPP)
    });
    assert_eq!(words, [1, 1, 0, 0]);
    assert_eq!(done.unwrap_err().progress().accessed, 2 * PAGE_SIZE);

    let unaligned = Harvest::new(PAGE_SIZE, MIB).drive(&mut words, |_| panic!("it was called"));
    assert!(matches!(unaligned, Err(Error::Argument(_))));
}

#[test]
fn a_harvest_has_an_end() {
    let (mut words, mut calls) = (vec![], 0);
    let harvest = Harvest::new(0, MIB).attempts(3).address_space(1);
    let done = harvest.drive(&mut words, |range| {
        assert_eq!((range.as_id, range.flags, range.reserved), (1, 0, [0; 3]));
        calls += 1;
        errno(libc::EAGAIN)
    });
    assert!(matches!(done, Err(Error::Stuck { attempts: 3, .. })));
    assert_eq!(calls, 4);
}

#[test]
fn what_is_no_vm_is_an_error() {
    let nowhere = std::fs::File::open("/dev/null").unwrap();
    for error in [
        probe(&nowhere).unwrap_err(),
        enable(&nowhere, Features::POPULATE).unwrap_err(),
        Populate::new(0, MIB).run(&nowhere).unwrap_err(),
        Harvest::new(0, MIB).run(&nowhere, &mut vec![]).unwrap_err(),
    ] {
        assert_eq!(error.errno(), Some(libc::ENOTTY), "{}", error);
        assert!(!error.is_temporary());
    }
}

#[test]
fn features_are_named() {
    let some = Features::POPULATE | Features::HARVEST;
    assert_eq!(some.to_string(), "populate, harvest");
    assert_eq!(Features::from_bits(1 << 9).to_string(), "bit 9");
    assert_eq!(Features::NONE.to_string(), "nothing");
    assert!(some.contains(Features::HARVEST));
    assert!(!some.contains(Features::HARVEST | Features::PAGE_CACHE));
    assert_eq!(some & Features::HARVEST, Features::HARVEST);
}
