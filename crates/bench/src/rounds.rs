//! Rounds: contenders take turns, and each round gives one ratio of any two of them.

/// The result of one turn of one contender.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Operations (or bytes) done.
    pub amount: f64,
    /// Wall time in seconds.
    pub wall_s: f64,
    /// CPU time in seconds of the measured process.
    pub cpu_s: f64,
}

/// The basis on which contenders are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// Amount per second of wall time.
    Wall,
    /// Amount per second of CPU time: also valid on a machine with other load.
    Cpu,
    /// Seconds of CPU time per amount: less is better.
    Cost,
}

impl Basis {
    /// Name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Wall => "wall",
            Basis::Cpu => "CPU",
            Basis::Cost => "CPU/op",
        }
    }

    fn of(self, sample: &Sample) -> f64 {
        match self {
            Basis::Wall => sample.amount / sample.wall_s,
            Basis::Cpu => sample.amount / sample.cpu_s,
            Basis::Cost => sample.cpu_s / sample.amount,
        }
    }
}

/// Samples by contender, then by round.
#[derive(Debug, Clone)]
pub struct Rounds(Vec<Vec<Sample>>);

impl Rounds {
    /// No rounds yet, for `contenders` contenders.
    pub fn new(contenders: usize) -> Rounds {
        Rounds(vec![Vec::new(); contenders])
    }

    /// The order of contenders in a round: the first contender of one round is the last of the
    /// next.
    pub fn order(contenders: usize, round: usize) -> impl Iterator<Item = usize> {
        (0..contenders).map(move |place| (place + round) % contenders)
    }

    /// Adds the result of a contender's turn.
    pub fn add(&mut self, contender: usize, sample: Sample) {
        self.0[contender].push(sample);
    }

    /// The median of one contender.
    ///
    /// # Panics
    /// If it had no turn.
    pub fn median(&self, contender: usize, basis: Basis) -> f64 {
        spread(self.0[contender].iter().map(|sample| basis.of(sample)).collect())[1]
    }

    /// Ratios of one contender to another, round by round: least, median, most.
    ///
    /// # Panics
    /// If there was no round.
    pub fn ratio(&self, ours: usize, peer: usize, basis: Basis) -> [f64; 3] {
        let pairs = self.0[ours].iter().zip(&self.0[peer]);
        spread(pairs.map(|(ours, peer)| basis.of(ours) / basis.of(peer)).collect())
    }
}

/// Least, median and most.
///
/// # Panics
/// If there is no value.
pub fn spread(mut values: Vec<f64>) -> [f64; 3] {
    assert!(!values.is_empty(), "a median needs a value");
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_same_round() {
        let mut rounds = Rounds::new(2);
        // The machine gets slower from round to round, but the ratio stays the same.
        for (speed, cpu_s) in [(100.0, 1.0), (10.0, 2.0), (1.0, 4.0)] {
            rounds.add(0, Sample { amount: 2.0 * speed, wall_s: 1.0, cpu_s });
            rounds.add(1, Sample { amount: speed, wall_s: 1.0, cpu_s: 2.0 * cpu_s });
        }
        assert_eq!(rounds.ratio(0, 1, Basis::Wall), [2.0; 3]);
        assert_eq!(rounds.ratio(0, 1, Basis::Cpu), [4.0; 3]);
        assert_eq!(rounds.ratio(0, 1, Basis::Cost), [0.25; 3]);
        assert_eq!(rounds.median(1, Basis::Wall), 10.0);
    }

    #[test]
    fn everyone_has_one_turn_a_round_and_nobody_is_always_first() {
        let orders: Vec<Vec<usize>> = (0..3).map(|round| Rounds::order(3, round).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }
}
