//! The closed loop of a tenant's clients standalone: how long a request takes of the time if all of them think and
//! wait.
//!
//! ```text
//!   N clients ─► think Z ─► queue ─► service S ─┐       one at a time is served
//!       ▲                                       │
//!       └───────────────────────────────────────┘
//!
//!   R(n) = S x (1 + Q(n - 1)), X(n) = n / (Z + R(n)), Q(n) = X(n) x R(n); a request takes 1 / X(N) of the time
//! ```
//!
//! Source: mean value analysis (Reiser and Lavenberg, 1980). With one client it is Z + S.

/// Clients beyond which more make no difference.
const CLIENTS_MAX: u32 = 64;

/// Mean time from one completed request to the next, for `clients` clients. Each request is served for `service`; all
/// clients together think for `pause` between two requests, so each of them for `clients` x `pause`. Any unit of time.
pub(crate) fn per_request(clients: u32, service: f64, pause: f64) -> f64 {
    let clients = clients.clamp(1, CLIENTS_MAX);
    let think = pause * f64::from(clients);
    let (mut queue, mut per_request) = (0.0, 0.0);
    for n in 1..=clients {
        let response = service * (1.0 + queue);
        per_request = (think + response) / f64::from(n);
        queue = if per_request > 0.0 { response / per_request } else { 0.0 };
    }
    per_request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_thinks_and_waits_in_turns() {
        assert_eq!(per_request(1, 5.0, 20.0), 25.0);
        assert_eq!(per_request(0, 5.0, 20.0), 25.0);
    }

    #[test]
    fn many_clients_are_limited_by_what_is_longer() {
        assert_eq!([1, 8, 200].map(|clients| per_request(clients, 0.0, 3.0)), [3.0; 3]);
        assert_eq!([1, 8, 200].map(|clients| per_request(clients, 3.0, 0.0)), [3.0; 3]);
        let near = |clients, service, pause, expected: f64| {
            let found = per_request(clients, service, pause);
            assert!((found / expected - 1.0).abs() < 0.01, "{found}, not {expected}");
        };
        near(64, 1.0, 4.0, 4.0);
        near(64, 4.0, 1.0, 4.0);
        // Two clients that think for as long as a request takes, by hand: R(2) = 1.5, X = 2 / 2.5.
        near(2, 1.0, 0.5, 1.25);
    }
}
