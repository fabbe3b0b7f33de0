// SPDX-License-Identifier: GPL-2.0
//! Bitmaps of pages, as the kernel has them: bit n of the words is page n of a range.

use crate::PAGE_SIZE;

/// Pages that a word has.
pub const WORD_PAGES: u64 = 64;

/// What a word covers: where a bitmap begins is a multiple of it.
pub const WORD_SIZE: u64 = WORD_PAGES * PAGE_SIZE;

/// Words for a range of so many bytes.
pub fn words_for(size: u64) -> u64 {
    size / WORD_SIZE + u64::from(size % WORD_SIZE != 0)
}

/// Pages whose bit is set.
pub fn count(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Add the pages of `from`.  The longer of the two sets the length.
pub fn merge(into: &mut Vec<u64>, from: &[u64]) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (word, more) in into.iter_mut().zip(from) {
        *word |= more;
    }
}

/// Take out the pages of `those`.
pub fn remove(from: &mut [u64], those: &[u64]) {
    for (word, less) in from.iter_mut().zip(those) {
        *word &= !less;
    }
}

/// Whether a bit is set beyond the last page of a range of so many bytes.
pub fn strays(words: &[u64], size: u64) -> bool {
    let pages = size / PAGE_SIZE;
    let whole = (pages / WORD_PAGES) as usize;
    let rest = !0u64 << (pages % WORD_PAGES);
    words.iter().skip(whole).enumerate().any(|(n, word)| {
        let beyond = if n == 0 { rest } else { !0 };
        word & beyond != 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let wanted = [(0, 0), (PAGE_SIZE, 1), (WORD_SIZE, 1), (WORD_SIZE + PAGE_SIZE, 2)];
        for (size, words) in wanted {
            assert_eq!(words_for(size), words, "{}", size);
        }
        assert_eq!(words_for(!0), 1 << 46);
    }

    #[test]
    fn sets() {
        let mut all = vec![0b0101];
        merge(&mut all, &[0b0011, 1 << 63]);
        assert_eq!(all, [0b0111, 1 << 63]);
        merge(&mut all, &[]);
        assert_eq!(count(&all), 4);
        remove(&mut all, &[0b0110]);
        assert_eq!(all, [1, 1 << 63]);
        remove(&mut all, &[1, !0, !0]);
        assert_eq!(count(&all), 0);
    }

    #[test]
    fn beyond_the_end() {
        assert!(!strays(&[!0], WORD_SIZE));
        assert!(!strays(&[!0, 1], WORD_SIZE + PAGE_SIZE));
        assert!(strays(&[!0, 2], WORD_SIZE + PAGE_SIZE));
        assert!(strays(&[0, 0, 1], WORD_SIZE + PAGE_SIZE));
        assert!(strays(&[1], 0));
    }
}
