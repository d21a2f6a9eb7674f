//! How far simulated rows are from the published ones, by the measure that was published.

use crate::page::{Order, Page};
use crate::study::{RowSpec, Source};

/// An error up to this counts as agreement.
pub const WITHIN: f64 = 0.15;

/// What a row is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A constant was chosen so that it agrees.
    Fitted,
    /// It follows, and no other row says the same.
    Predicted,
    /// It follows from two other rows by division: it says nothing new.
    Derived,
    /// The same configuration was measured once more.
    Repeated,
    /// Nothing was published; the order matters.
    Order,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Fitted => "fitted",
            Role::Predicted => "predicted",
            Role::Derived => "derived",
            Role::Repeated => "repeated",
            Role::Order => "",
        }
    }
}

/// A published figure and the simulated one.
pub struct Row {
    pub name: String,
    pub published: Option<f64>,
    pub simulated: f64,
    pub role: Role,
}

impl Row {
    /// Relative to what was published; `None` if nothing was.
    pub fn error(&self) -> Option<f64> {
        self.published
            .map(|published| self.simulated / published - 1.0)
    }

    pub fn is_near(&self) -> bool {
        self.error().is_some_and(|error| error.abs() <= WITHIN)
    }
}

/// What each row of a page is there for.
pub fn roles(page: &Page, rows: &[RowSpec]) -> Vec<Role> {
    let is_fitted = |name: &str| page.constants.iter().any(|one| one.fitted_on == name);
    let is_again = |at: usize| {
        let Source::Run(case, measure) = &rows[at].source else {
            return false;
        };
        rows[..at].iter().any(|other| {
            other.published.is_some()
                && matches!(&other.source, Source::Run(a, b) if a == case && b == measure)
        })
    };
    rows.iter()
        .enumerate()
        .map(|(at, row)| match row.source {
            _ if row.published.is_none() => Role::Order,
            _ if is_fitted(&row.name) => Role::Fitted,
            Source::Ratio(a, b) | Source::Gain(a, b)
                if rows[a].published.is_some() && rows[b].published.is_some() =>
            {
                Role::Derived
            }
            _ if is_again(at) => Role::Repeated,
            _ => Role::Predicted,
        })
        .collect()
}

/// Whether an order holds among the simulated rows.
pub fn holds(order: &Order, rows: &[Row]) -> Result<bool, String> {
    if order.greater.len() < 2 && order.alike.len() < 2 {
        return Err(format!("`{}`: it compares nothing", order.what));
    }
    let value = |name: &String| {
        let row = rows.iter().find(|row| row.name == *name);
        row.map(|row| row.simulated)
            .ok_or_else(|| format!("`{}`: no row is called `{name}`", order.what))
    };
    let greater = order.greater.iter().map(value);
    let greater = greater.collect::<Result<Vec<f64>, String>>()?;
    let alike = order.alike.iter().map(value);
    let alike = alike.collect::<Result<Vec<f64>, String>>()?;
    let falls = greater.windows(2).all(|two| two[0] > order.by * two[1]);
    let flat = alike
        .iter()
        .all(|value| (value / alike[0] - 1.0).abs() <= order.within);
    Ok(falls && flat)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(published: f64, simulated: f64) -> Row {
        Row {
            name: "row".to_owned(),
            published: Some(published),
            simulated,
            role: Role::Predicted,
        }
    }

    /// Scored as ratios of throughput, 1.05 against 1.01, a gain of a fifth of the published one was an agreement.
    #[test]
    fn a_gain_of_one_percent_is_not_one_of_five() {
        assert!(!row(5.0, 1.0).is_near());
        assert!(row(5.0, 4.5).is_near());
        assert!(!row(5.0, -5.0).is_near());
    }

    /// A speed-up and the two times that give it were counted as three rows.
    #[test]
    fn what_follows_from_two_rows_is_not_a_third() {
        let page = |third: &str| -> Page {
            toml::from_str(&format!(
                "title = 't'\nsource = 's'\n[machines.m]\ntopology = '2 core'\n\
                 [[tables]]\nworkload = 'w'\nmachine = 'm'\nparameters = ['n']\n\
                 columns = [{{ name = 'a', policy = 'linux', measure = 'makespan_s' }}, \
                 {{ name = 'b', policy = 'steal', measure = 'makespan_s' }}, \
                 {{ name = 'gain', gain_percent = ['a', 'b'] }}]\n\
                 rows = [[1, {third}, 50.0], [1, {third}, 50.0]]\n"
            ))
            .unwrap()
        };
        let roles_of = |third: &str| {
            let page = page(third);
            let study = crate::study::Study::new("nowhere".into(), Default::default());
            let rows = study.rows(&page).unwrap();
            roles(&page, &rows)
        };
        let (p, d) = (Role::Predicted, Role::Derived);
        assert_eq!(
            roles_of("3.0, 2.0"),
            [p, p, d, Role::Repeated, Role::Repeated, d]
        );
        let o = Role::Order;
        assert_eq!(roles_of("'-', '-'"), [o, o, p, o, o, p]);
    }
}
