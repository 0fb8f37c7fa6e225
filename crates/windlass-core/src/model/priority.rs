//! Priorities, the four bands they fall into, and how claims share capacity between bands. Pure.

use serde::{Deserialize, Serialize};

/// How urgent a job is: higher first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Priority(pub i16);

impl Priority {
    /// Before everything else.
    pub const CRITICAL: Priority = Priority(20);
    /// Before normal work.
    pub const HIGH: Priority = Priority(10);
    /// The default.
    pub const NORMAL: Priority = Priority(0);
    /// After everything else, but with a guaranteed share.
    pub const LOW: Priority = Priority(-10);

    /// The band that a priority belongs to: the named level at or below it, and `Low` below normal.
    pub fn band(self) -> Band {
        match self {
            p if p >= Priority::CRITICAL => Band::Critical,
            p if p >= Priority::HIGH => Band::High,
            p if p >= Priority::NORMAL => Band::Normal,
            _ => Band::Low,
        }
    }

    /// Reads a name or a number.
    pub fn parse(text: &str) -> Option<Priority> {
        match text {
            "critical" => Some(Priority::CRITICAL),
            "high" => Some(Priority::HIGH),
            "normal" => Some(Priority::NORMAL),
            "low" => Some(Priority::LOW),
            number => number.parse().ok().map(Priority),
        }
    }
}

/// The four bands that share a node's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Band {
    /// 20 and up.
    Critical,
    /// 10 to 19.
    High,
    /// 0 to 9.
    Normal,
    /// Below 0.
    Low,
}

impl Band {
    /// All, most urgent first.
    pub const ALL: [Band; 4] = [Band::Critical, Band::High, Band::Normal, Band::Low];

    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Band::Critical => "critical",
            Band::High => "high",
            Band::Normal => "normal",
            Band::Low => "low",
        }
    }

    /// Reads a name.
    pub fn parse(text: &str) -> Option<Band> {
        Band::ALL.into_iter().find(|band| band.as_str() == text)
    }

    /// The lowest and the highest priority of this band.
    pub fn priorities(self) -> (Priority, Priority) {
        match self {
            Band::Critical => (Priority::CRITICAL, Priority(i16::MAX)),
            Band::High => (Priority::HIGH, Priority(Priority::CRITICAL.0 - 1)),
            Band::Normal => (Priority::NORMAL, Priority(Priority::HIGH.0 - 1)),
            Band::Low => (Priority(i16::MIN), Priority(Priority::NORMAL.0 - 1)),
        }
    }

    /// The place of this band in [`Band::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// How bands share capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandPolicy {
    /// Each band with waiting work gets its weight's part.
    Weighted([u32; 4]),
    /// A band waits until every better one is empty.
    Strict,
}

impl Default for BandPolicy {
    fn default() -> Self {
        BandPolicy::Weighted([4, 3, 2, 1])
    }
}

/// Splits claims between bands so that, over time, busy bands get their weights' parts exactly, also when each claim is
/// for one job. Kept by one claimer; the caller passes which bands have waiting work.
#[derive(Debug, Default)]
pub struct BandShares {
    /// What each band is owed: grows by its weight with every job given out, shrinks by all weights when it gets one.
    credit: [i64; 4],
}

impl BandShares {
    /// Splits `want` jobs over the bands that are `busy`, most urgent first where credits are equal.
    pub fn split(&mut self, policy: BandPolicy, busy: [bool; 4], want: usize) -> [usize; 4] {
        let mut quota = [0usize; 4];
        match policy {
            BandPolicy::Strict => {
                if let Some(best) = (0..4).find(|&b| busy[b]) {
                    quota[best] = want;
                }
            }
            BandPolicy::Weighted(weights) => {
                let total: i64 = (0..4).filter(|&b| busy[b]).map(|b| i64::from(weights[b].max(1))).sum();
                if total == 0 {
                    return quota;
                }
                // Smooth weighted round robin: each pick pays out `total`, each busy band earns its weight.
                for _ in 0..want {
                    let mut best = None;
                    for b in (0..4).filter(|&b| busy[b]) {
                        self.credit[b] += i64::from(weights[b].max(1));
                        if best.is_none_or(|best: usize| self.credit[b] > self.credit[best]) {
                            best = Some(b);
                        }
                    }
                    let best = best.expect("total is positive, so a band is busy");
                    self.credit[best] -= total;
                    quota[best] += 1;
                }
                // Credit earned while others were idle must not become a burst later.
                for b in (0..4).filter(|&b| !busy[b]) {
                    self.credit[b] = 0;
                }
            }
        }
        quota
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(policy: BandPolicy, busy: [bool; 4], claims: usize, want: usize) -> [usize; 4] {
        let mut shares = BandShares::default();
        (0..claims).map(|_| shares.split(policy, busy, want)).fold([0; 4], |mut sum, q| {
            (0..4).for_each(|b| sum[b] += q[b]);
            sum
        })
    }

    #[test]
    fn busy_bands_share_four_three_two_one() {
        assert_eq!(shares(BandPolicy::default(), [true; 4], 100, 1), [40, 30, 20, 10]);
        assert_eq!(shares(BandPolicy::default(), [true; 4], 10, 100), [400, 300, 200, 100]);
    }

    #[test]
    fn an_idle_band_leaves_its_part_to_the_others() {
        assert_eq!(shares(BandPolicy::default(), [false, true, false, true], 40, 1), [0, 30, 0, 10]);
        assert_eq!(shares(BandPolicy::default(), [false; 4], 5, 10), [0; 4]);
    }

    #[test]
    fn strict_serves_the_best_busy_band_alone() {
        assert_eq!(shares(BandPolicy::Strict, [false, true, true, true], 3, 5), [0, 15, 0, 0]);
    }

    #[test]
    fn priorities_fall_into_the_band_at_or_below_them() {
        let bands: Vec<Band> = [25, 20, 19, 10, 9, 0, -1, -50].map(|p| Priority(p).band()).into();
        use Band::*;
        assert_eq!(bands, [Critical, Critical, High, High, Normal, Normal, Low, Low]);
        for band in Band::ALL {
            let (lowest, highest) = band.priorities();
            assert_eq!((lowest.band(), highest.band(), Band::parse(band.as_str())), (band, band, Some(band)));
        }
    }
}
