// SPDX-License-Identifier: GPL-2.0
//! What a guest touches, in which order, and the file that keeps it beside a snapshot.
//!
//! All numbers of the file are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `GTDPWSET` |
//! | 4 | version, 1 |
//! | 4 | page size, 4096 |
//! | 4, 4 | regions, periods |
//! | 8, 8 of each region | `gpa`, `size` in bytes |
//! | 8 for each 64 pages, or less | of each period in order, and in it of each region in order, a bitmap: bit n is page n of the region |
//! | 8 | FNV-1a, of 64 bits, of all before |

use crate::bitmap::{self, strays, words_for, WORD_SIZE};
use crate::{Error, Features, Harvest, Populate, Progress, PAGE_SIZE};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::io::AsRawFd;
use std::path::Path;
use std::{error, fmt};

const MAGIC: &[u8; 8] = b"GTDPWSET";
const VERSION: u32 = 1;

/// More regions, or periods, than anybody has: a file that says so is not believed.
const MOST: u32 = 1 << 16;

/// Of guest memory: it may span memslots, and holes between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// A multiple of 256 KiB.
    pub gpa: u64,
    /// In bytes, whole pages.
    pub size: u64,
}

/// Bitmaps of one period, one for each region.
type Period = Vec<Vec<u64>>;

/// The pages that a guest accessed, by periods of its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingSet {
    regions: Vec<Region>,
    periods: Vec<Period>,
}

/// Why a file, or what was to become a part of one, is refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum FormatError {
    /// It can't be read, or written.
    Io(io::Error),
    /// It does not begin as one does.
    NotAWorkingSet,
    /// Of a version that this crate does not know.
    Version(u32),
    /// Of pages of another size.
    PageSize(u32),
    /// It says that it has too many of something.
    TooMany(&'static str, u32),
    /// A region is not as it must be.
    Region(usize, &'static str),
    /// It is not as many bitmaps, or not as long, as the regions want.
    Shape,
    /// A bitmap has a page beyond its region.
    Stray { period: usize, region: usize },
    /// It ends too early.
    Truncated,
    /// It goes on behind its end.
    Trailing,
    /// What it has is not what was written.
    Checksum,
    /// It is of a VM whose memory is elsewhere.
    OtherRegions,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use FormatError::*;
        match self {
            Io(error) => write!(f, "{}", error),
            NotAWorkingSet => write!(f, "this is no working set"),
            Version(version) => write!(
                f,
                "a working set of version {}, and not {}: record it again",
                version, VERSION
            ),
            PageSize(size) => write!(f, "pages of {} bytes, and not {}", size, PAGE_SIZE),
            TooMany(what, number) => write!(f, "{} {}: at most {}", number, what, MOST),
            Region(number, why) => write!(f, "region {} {}", number, why),
            Shape => write!(f, "the bitmaps are not those of the regions"),
            Stray { period, region } => {
                write!(f, "period {} has a page beyond the end of region {}", period, region)
            }
            Truncated => write!(f, "the working set is cut off"),
            Trailing => write!(f, "there is something behind the working set"),
            Checksum => write!(f, "the working set is damaged: its checksum is another one"),
            OtherRegions => write!(f, "the working set is of other memory than this VM has"),
        }
    }
}

impl error::Error for FormatError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            FormatError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for FormatError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => FormatError::Truncated,
            _ => FormatError::Io(error),
        }
    }
}

impl WorkingSet {
    /// One without a period, of regions in ascending order.  Those of a VM may be joined, as
    /// holes between memslots do not matter: all below 4 GiB may be one.
    pub fn new(regions: &[Region]) -> Result<Self, FormatError> {
        if regions.is_empty() {
            return Err(FormatError::Region(0, "is missing"));
        }
        let number = u32::try_from(regions.len()).unwrap_or(u32::MAX);
        if number > MOST {
            return Err(FormatError::TooMany("regions", number));
        }
        let mut end = 0;
        for (n, region) in regions.iter().enumerate() {
            let wrong = |why| Err(FormatError::Region(n, why));
            if region.gpa % WORD_SIZE != 0 {
                return wrong("does not begin at a multiple of 256 KiB");
            }
            if region.size == 0 || region.size % PAGE_SIZE != 0 {
                return wrong("is not of whole pages, or of none");
            }
            if region.gpa < end {
                return wrong("is not behind the one before");
            }
            end = match region.gpa.checked_add(region.size) {
                Some(end) if usize::try_from(words_for(region.size)).is_ok() => end,
                _ => return wrong("is too large"),
            };
        }
        Ok(WorkingSet { regions: regions.to_vec(), periods: vec![] })
    }

    /// Whose pages it has.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// How many periods it has.
    pub fn len(&self) -> usize {
        self.periods.len()
    }

    /// Whether it has no period.
    pub fn is_empty(&self) -> bool {
        self.periods.is_empty()
    }

    /// The bitmaps of a period, one for each region.
    pub fn period(&self, n: usize) -> Option<&[Vec<u64>]> {
        self.periods.get(n).map(Vec::as_slice)
    }

    /// Pages of a period.
    pub fn pages(&self, n: usize) -> u64 {
        let period = self.period(n).unwrap_or_default();
        period.iter().map(|words| bitmap::count(words)).sum()
    }

    /// Add a period, the latest.
    pub fn push(&mut self, period: Vec<Vec<u64>>) -> Result<(), FormatError> {
        let number = self.periods.len();
        if number >= MOST as usize {
            return Err(FormatError::TooMany("periods", MOST + 1));
        }
        if period.len() != self.regions.len() {
            return Err(FormatError::Shape);
        }
        for (n, (region, words)) in self.regions.iter().zip(&period).enumerate() {
            if words.len() as u64 != words_for(region.size) {
                return Err(FormatError::Shape);
            }
            if strays(words, region.size) {
                return Err(FormatError::Stray { period: number, region: n });
            }
        }
        self.periods.push(period);
        Ok(())
    }

    /// Add a period with what the VM has accessed since the last one.  As a page is found
    /// once, what there was before an error is added, too.  Memory may be populated before, for
    /// the guest not to fault while it is recorded: what is mapped ahead does not count.
    pub fn record(&mut self, vm: &impl AsRawFd) -> Result<u64, Error> {
        if self.periods.len() >= MOST as usize {
            return Err(Error::Argument("there are too many periods"));
        }
        let (mut period, mut accessed, mut wrong) = (vec![], 0, None);
        for region in &self.regions {
            let mut words = vec![];
            match Harvest::new(region.gpa, region.size).run(vm, &mut words) {
                Ok(progress) => accessed += progress.accessed,
                Err(error) => wrong = wrong.or(Some(error)),
            }
            words.resize(words_for(region.size) as usize, 0);
            period.push(words);
        }
        self.periods.push(period);
        wrong.map_or(Ok(accessed), Err)
    }

    /// All pages, whenever they were accessed.  Without a period, there are no words.
    pub fn merged(&self) -> Vec<Vec<u64>> {
        let mut all: Period = vec![vec![]; self.regions.len()];
        for period in &self.periods {
            for (into, from) in all.iter_mut().zip(period) {
                bitmap::merge(into, from);
            }
        }
        all
    }

    /// The same with each page in the first of its periods only, which is what a replay wants;
    /// periods in which nothing is left are left out.
    #[must_use]
    pub fn first_touches(&self) -> WorkingSet {
        let mut firsts = WorkingSet { regions: self.regions.clone(), periods: vec![] };
        let mut seen: Period = vec![vec![]; self.regions.len()];
        for period in &self.periods {
            let mut fresh = period.clone();
            for (words, seen) in fresh.iter_mut().zip(&mut seen) {
                bitmap::remove(words, seen);
                bitmap::merge(seen, words);
            }
            if fresh.iter().any(|words| bitmap::count(words) != 0) {
                firsts.periods.push(fresh);
            }
        }
        firsts
    }

    /// Have the pages of one period mapped, as far as they are present or, if the VM `has`
    /// that, in the page cache.  The first may be worth waiting for; others can go on in a
    /// thread, beside the vCPUs.
    pub fn replay_period(
        &self,
        n: usize,
        vm: &impl AsRawFd,
        has: Features,
    ) -> Result<Progress, Error> {
        let period = self.period(n).ok_or(Error::Argument("there is no such period"))?;
        let mut sum = Progress::default();
        for (region, words) in self.regions.iter().zip(period) {
            if bitmap::count(words) == 0 {
                continue;
            }
            let populate = Populate::new(region.gpa, region.size).only(words);
            let done = populate.page_cache(has).run(vm)?;
            sum.mapped += done.mapped;
            sum.absent += done.absent;
        }
        Ok(sum)
    }

    /// Have all periods mapped, in their order.
    pub fn replay(&self, vm: &impl AsRawFd, has: Features) -> Result<Progress, Error> {
        let mut sum = Progress::default();
        for n in 0..self.periods.len() {
            let done = self.replay_period(n, vm, has)?;
            sum.mapped += done.mapped;
            sum.absent += done.absent;
        }
        Ok(sum)
    }

    /// Whether it is of a VM that has its memory there.
    pub fn check_regions(&self, regions: &[Region]) -> Result<(), FormatError> {
        if self.regions != regions {
            return Err(FormatError::OtherRegions);
        }
        Ok(())
    }

    /// Write it into a file, whole or not at all.
    pub fn save(&self, path: &Path) -> Result<(), FormatError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let new = Path::new(&name);
        let written = File::create(new).map_err(FormatError::Io).and_then(|file| {
            let mut sink = BufWriter::new(file);
            self.write(&mut sink)?;
            sink.flush()?;
            Ok(sink.get_ref().sync_all()?)
        });
        let done = written.and_then(|()| Ok(fs::rename(new, path)?));
        if done.is_err() {
            // The error is the one before; there may be no such file.
            let _ = fs::remove_file(new);
        }
        done
    }

    /// Read it from a file, to the file's end.
    pub fn load(path: &Path) -> Result<Self, FormatError> {
        let mut source = BufReader::new(File::open(path)?);
        let set = Self::read(&mut source)?;
        match source.read(&mut [0])? {
            0 => Ok(set),
            _ => Err(FormatError::Trailing),
        }
    }

    /// Write it; a sink that is slow with few bytes at a time wants a `BufWriter`.
    pub fn write(&self, sink: &mut impl Write) -> Result<(), FormatError> {
        let mut sink = Summed::new(sink);
        sink.write_all(MAGIC)?;
        let (regions, periods) = (self.regions.len() as u32, self.periods.len() as u32);
        for number in [VERSION, PAGE_SIZE as u32, regions, periods] {
            sink.write_all(&number.to_le_bytes())?;
        }
        for region in &self.regions {
            sink.write_all(&region.gpa.to_le_bytes())?;
            sink.write_all(&region.size.to_le_bytes())?;
        }
        for word in self.periods.iter().flatten().flatten() {
            sink.write_all(&word.to_le_bytes())?;
        }
        let sum = sink.sum;
        Ok(sink.inner.write_all(&sum.to_le_bytes())?)
    }

    /// Read one, and not a byte more.  Nothing that it says is believed before it is there: one
    /// that claims to be large takes no more memory than it has bytes.
    pub fn read(source: &mut impl Read) -> Result<Self, FormatError> {
        let mut source = Summed::new(source);
        if &source.array()? != MAGIC {
            return Err(FormatError::NotAWorkingSet);
        }
        match source.u32()? {
            VERSION => (),
            version => return Err(FormatError::Version(version)),
        }
        match source.u32()? {
            size if u64::from(size) == PAGE_SIZE => (),
            size => return Err(FormatError::PageSize(size)),
        }
        let (number, periods) = (source.u32()?, source.u32()?);
        for (what, number) in [("regions", number), ("periods", periods)] {
            if number > MOST {
                return Err(FormatError::TooMany(what, number));
            }
        }
        let mut regions = vec![];
        for _ in 0..number {
            let (gpa, size) = (source.u64()?, source.u64()?);
            regions.push(Region { gpa, size });
        }
        let mut set = WorkingSet::new(&regions)?;
        for _ in 0..periods {
            let mut period = vec![];
            for region in &regions {
                period.push(source.words(words_for(region.size))?);
            }
            set.push(period)?;
        }
        let sum = source.sum;
        if source.u64()? != sum {
            return Err(FormatError::Checksum);
        }
        Ok(set)
    }
}

/// What is read or written, and the sum of it.
struct Summed<'a, T> {
    inner: &'a mut T,
    sum: u64,
}

impl<'a, T> Summed<'a, T> {
    fn new(inner: &'a mut T) -> Self {
        Summed { inner, sum: 0xcbf2_9ce4_8422_2325 }
    }

    /// FNV-1a.
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.sum = (self.sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl<T: Write> Summed<'_, T> {
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        self.add(bytes);
        Ok(self.inner.write_all(bytes)?)
    }
}

impl<T: Read> Summed<'_, T> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.add(&bytes);
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    fn words(&mut self, number: u64) -> Result<Vec<u64>, FormatError> {
        let mut words = vec![];
        for _ in 0..number {
            words.push(self.u64()?);
        }
        Ok(words)
    }
}

#[cfg(test)]
mod tests;
