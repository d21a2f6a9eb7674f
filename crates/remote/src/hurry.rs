//! When what a connection carries is marked as what somebody waits for. Pure.

/// Urgent requests after which a connection is taken for one that carries nothing else. Until the others are there, the first carries all.
const IN_A_ROW: u32 = 8;

/// A connection and its mark.
#[derive(Debug, Default)]
pub(crate) struct Hurry {
    is_marked: bool,
    in_a_row: u32,
}

impl Hurry {
    /// After another request: whether to mark from now on, or not any more, if that changes.
    pub fn change(&mut self, is_urgent: bool) -> Option<bool> {
        self.in_a_row = match is_urgent {
            true => self.in_a_row.saturating_add(1),
            false => 0,
        };
        let is_marked = self.in_a_row >= IN_A_ROW;
        (std::mem::replace(&mut self.is_marked, is_marked) != is_marked).then_some(is_marked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_marked_while_all_of_it_is_urgent() {
        let mut hurry = Hurry::default();
        let told = |hurry: &mut Hurry, urgent: &[bool]| -> Vec<bool> {
            urgent
                .iter()
                .filter_map(|urgent| hurry.change(*urgent))
                .collect()
        };
        assert_eq!(told(&mut hurry, &[true; 7]), [false; 0]);
        assert_eq!(told(&mut hurry, &[false, true, true]), [false; 0]);
        assert_eq!(told(&mut hurry, &[true; 100]), [true]);
        assert_eq!(told(&mut hurry, &[false; 9]), [false]);
        assert_eq!(told(&mut hurry, &[true; 8]), [true]);
    }
}
