// SPDX-License-Identifier: GPL-2.0
//! The file, and all that it refuses.

use super::*;

const REGIONS: [Region; 2] = [
    Region { gpa: 0, size: WORD_SIZE + 3 * PAGE_SIZE },
    Region { gpa: 1 << 32, size: WORD_SIZE },
];

fn example() -> WorkingSet {
    let mut set = WorkingSet::new(&REGIONS).unwrap();
    set.push(vec![vec![0x8000_0000_0000_0001, 0b100], vec![0]]).unwrap();
    set.push(vec![vec![1, 0b011], vec![!0]]).unwrap();
    set
}

fn bytes(set: &WorkingSet) -> Vec<u8> {
    let mut bytes = vec![];
    set.write(&mut bytes).unwrap();
    bytes
}

fn read(mut bytes: &[u8]) -> Result<WorkingSet, FormatError> {
    WorkingSet::read(&mut bytes)
}

/// With the sum that such a file would have.
fn seal(bytes: &mut [u8]) {
    let end = bytes.len() - 8;
    let mut nowhere = io::sink();
    let mut summed = Summed::new(&mut nowhere);
    summed.add(&bytes[..end]);
    bytes[end..].copy_from_slice(&summed.sum.to_le_bytes());
}

/// The example with something else in it, as if it had been written so.
fn forged(at: usize, with: &[u8]) -> Result<WorkingSet, FormatError> {
    let mut forged = bytes(&example());
    forged[at..at + with.len()].copy_from_slice(with);
    seal(&mut forged);
    read(&forged)
}

/// Byte by byte, by the table at the head of the module, and nothing that this crate wrote.
#[test]
fn the_format_is_as_told() {
    let mut wanted = b"GTDPWSET\x01\0\0\0\0\x10\0\0\x02\0\0\0\x02\0\0\0".to_vec();
    for number in [0, 67 * 4096, 1 << 32, 64 * 4096] {
        wanted.extend(u64::to_le_bytes(number));
    }
    for word in [1 << 63 | 1, 4, 0, 1, 3, !0] {
        wanted.extend(u64::to_le_bytes(word));
    }
    let written = bytes(&example());
    assert_eq!(written[..written.len() - 8], wanted);
    assert_eq!(written.len(), 24 + 2 * 16 + 2 * 3 * 8 + 8);
}

/// Of "" and "foobar", as the authors of FNV tell them.
#[test]
fn the_sum_is_fnv_1a() {
    let mut nowhere = io::sink();
    let mut summed = Summed::new(&mut nowhere);
    assert_eq!(summed.sum, 0xcbf29ce484222325);
    summed.add(b"foobar");
    assert_eq!(summed.sum, 0x85944171f73967e8);
}

#[test]
fn what_was_written_is_read() {
    let set = example();
    assert_eq!(read(&bytes(&set)).unwrap(), set);
    let empty = WorkingSet::new(&REGIONS).unwrap();
    assert!(empty.is_empty());
    assert_eq!(read(&bytes(&empty)).unwrap(), empty);
}

#[test]
fn every_byte_counts() {
    let whole = bytes(&example());
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            assert!(read(&damaged).is_err(), "bit {} of byte {}", bit, at);
        }
    }
}

#[test]
fn every_end_is_too_early_but_the_last() {
    let whole = bytes(&example());
    for length in 0..whole.len() {
        let cut = read(&whole[..length]);
        assert!(matches!(cut, Err(FormatError::Truncated)), "{} bytes", length);
    }
}

#[test]
fn each_error_has_its_name() {
    use FormatError as E;
    assert!(matches!(forged(0, b"X"), Err(E::NotAWorkingSet)));
    assert!(matches!(forged(8, &[2]), Err(E::Version(2))));
    assert!(matches!(forged(12, &[0, 0, 1]), Err(E::PageSize(0x10000))));
    assert!(matches!(forged(16, &[0, 0, 2]), Err(E::TooMany("regions", 0x20000))));
    assert!(matches!(forged(20, &[1, 0, 1]), Err(E::TooMany("periods", 0x10001))));
    // Without regions.
    assert!(matches!(forged(16, &[0]), Err(E::Region(0, _))));
    // Its gpa, its size.
    assert!(matches!(forged(24, &[0, 0x10]), Err(E::Region(0, _))));
    assert!(matches!(forged(32, &[1]), Err(E::Region(0, _))));
    assert!(matches!(forged(48, &[0; 8]), Err(E::Region(1, _))));
    assert!(matches!(forged(44, &[0; 4]), Err(E::Region(1, _))));
    let last = (!0u64 << 18).to_le_bytes();
    assert!(matches!(forged(40, &last), Err(E::Region(1, _))));
    // A 68th page of the first region.
    assert!(matches!(forged(64, &[8]), Err(E::Stray { period: 0, region: 0 })));
    assert!(matches!(forged(88, &[8]), Err(E::Stray { period: 1, region: 0 })));
    let mut damaged = bytes(&example());
    damaged[56] ^= 2;
    assert!(matches!(read(&damaged), Err(E::Checksum)));
}

/// 2^52 pages, and a few bytes: it ends as soon as these do.
#[test]
fn a_file_that_claims_to_be_large_is_short() {
    let huge = (!0u64 << 18).to_le_bytes();
    let mut forged = bytes(&WorkingSet::new(&REGIONS[..1]).unwrap());
    forged[20] = 1;
    forged[32..40].copy_from_slice(&huge);
    assert!(matches!(read(&forged), Err(FormatError::Truncated)));

    // Without a period it is a file as good as any, and no memory is taken for it.
    forged[20] = 0;
    seal(&mut forged);
    let set = read(&forged).unwrap();
    assert_eq!(set.merged(), [vec![]]);
    assert!(set.first_touches().is_empty());
}

#[test]
fn what_does_not_fit_is_not_added() {
    let mut set = example();
    let before = set.clone();
    for (wrong, stray) in [
        (vec![vec![0, 0]], false),
        (vec![vec![0], vec![0]], false),
        (vec![vec![0, 0, 0], vec![0]], false),
        (vec![vec![0, 8], vec![0]], true),
    ] {
        let refused = set.push(wrong).unwrap_err();
        let wanted =
            if stray { "period 2 has a page beyond" } else { "not those of the regions" };
        assert!(refused.to_string().contains(wanted), "{}", refused);
    }
    assert_eq!(set, before);
}

#[test]
fn regions_are_checked() {
    let large = Region { gpa: 0, size: !0 << 12 };
    assert!(WorkingSet::new(&[large]).is_ok());
    for wrong in [
        vec![],
        vec![Region { gpa: 4096, size: 4096 }],
        vec![Region { gpa: 0, size: 0 }],
        vec![Region { gpa: 0, size: 100 }],
        vec![REGIONS[1], REGIONS[0]],
        vec![REGIONS[0], REGIONS[0]],
        vec![Region { gpa: 1 << 18, size: !0 << 12 }],
        vec![REGIONS[1], large],
    ] {
        assert!(WorkingSet::new(&wrong).is_err(), "{:?}", wrong);
    }
    let set = example();
    assert!(set.check_regions(&REGIONS).is_ok());
    assert!(matches!(set.check_regions(&REGIONS[..1]), Err(FormatError::OtherRegions)));
}

#[test]
fn pages_are_counted_once() {
    let mut set = example();
    set.push(vec![vec![1, 0], vec![1]]).unwrap();
    assert_eq!([set.pages(0), set.pages(1), set.pages(2), set.pages(3)], [3, 67, 2, 0]);
    assert_eq!(set.merged(), [vec![1 << 63 | 1, 7], vec![!0]]);
    let firsts = set.first_touches();
    assert_eq!((firsts.len(), firsts.merged()), (2, set.merged()));
    assert_eq!(firsts.period(0), set.period(0));
    assert_eq!(firsts.period(1).unwrap(), [vec![0, 3], vec![!0]]);
}

#[test]
fn a_file_is_whole_or_not_there() {
    let directory = std::env::temp_dir().join(format!("global-tdp-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let path = directory.join("set");
    assert!(matches!(WorkingSet::load(&path), Err(FormatError::Io(_))));

    let set = example();
    set.save(&path).unwrap();
    assert_eq!(WorkingSet::load(&path).unwrap(), set);
    let names = |directory: &Path| fs::read_dir(directory).unwrap().count();
    assert_eq!(names(&directory), 1);

    let mut longer = bytes(&set);
    longer.push(0);
    fs::write(&path, &longer).unwrap();
    assert!(matches!(WorkingSet::load(&path), Err(FormatError::Trailing)));

    // To a name that is taken, by a directory.
    fs::create_dir(directory.join("taken")).unwrap();
    assert!(set.save(&directory.join("taken")).is_err());
    assert_eq!(names(&directory), 2);
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_period_is_kept_though_the_vm_is_gone() {
    let nowhere = File::open("/dev/null").unwrap();
    let mut set = WorkingSet::new(&REGIONS).unwrap();
    assert_eq!(set.record(&nowhere).unwrap_err().errno(), Some(libc::ENOTTY));
    assert_eq!((set.len(), set.pages(0)), (1, 0));
    assert_eq!(read(&bytes(&set)).unwrap(), set);
    // Nothing is to be done for pages that there are not.
    assert_eq!(set.replay(&nowhere, Features::POPULATE).unwrap(), Progress::default());
    assert!(example().replay(&nowhere, Features::POPULATE).is_err());
    assert!(matches!(set.replay_period(1, &nowhere, Features::NONE), Err(Error::Argument(_))));
}
