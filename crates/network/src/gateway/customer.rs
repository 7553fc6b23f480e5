//! A sandbox as the gateway knows it: its tokens, what it has spent, and how much it does at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_core::{Budget, OperationName, Tenant, TokenRecord, TokenState};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::budget::{Account, Spent};
use super::operation::Operation;
use super::refusal::Cause;
use crate::door::clock::today;

/// How much of bodies of one sandbox is held at once, in kibibytes.
pub(super) const ROOM_EACH: usize = 64 << 10;
/// And of their beginnings.
const LITTLE_EACH: usize = 8 << 10;

/// A sandbox that may call.
pub(super) struct Customer {
    pub(super) tokens: Mutex<Vec<TokenRecord>>,
    accounts: Mutex<HashMap<String, Arc<Mutex<Account>>>>,
    session: Arc<Mutex<Account>>,
    /// That of its tenant, which others have too.
    tenant: Mutex<Option<Arc<Mutex<Account>>>>,
    uses: Mutex<HashMap<OperationName, Arc<Use>>>,
    /// Room for bodies that are read whole, in kibibytes.
    pub(super) room: Arc<Semaphore>,
    /// And for the beginnings of bodies.
    pub(super) little: Arc<Semaphore>,
}

/// How an operation is used by one sandbox.
#[derive(Default)]
struct Use {
    open: AtomicU32,
    rate: Mutex<Option<(f64, Instant)>>,
}

/// A sandbox as it is introduced.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Introduction {
    /// Its tokens.
    pub tokens: Vec<TokenRecord>,
    /// What was spent before with each of them, by its id.
    pub spent: BTreeMap<String, Spent>,
    /// Its tenant, if what that may have done is limited.
    pub tenant: Option<TenantBudget>,
}

/// What a tenant's sandboxes may spend together in a day.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TenantBudget {
    /// Whose.
    pub tenant: Tenant,
    /// How much.
    pub budget: Budget,
    /// The day, from 1970 on.
    pub day: u64,
    /// What was spent on it so far.
    pub spent: Spent,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Customer {
    /// One that has spent this before, and has a budget of its own besides those of its tokens.
    pub(super) fn new(introduction: Introduction, budget: Budget) -> Self {
        let Introduction { tokens, spent, tenant: _ } = introduction;
        let session = spent.values().copied().fold(Spent::default(), Spent::and);
        let accounts = tokens.iter().map(|record| {
            let before = spent.get(&record.id).copied().unwrap_or_default();
            (record.id.clone(), Arc::new(Mutex::new(Account::new(record.grant.budget, before))))
        });
        Self {
            accounts: Mutex::new(accounts.collect()),
            tokens: Mutex::new(tokens),
            session: Arc::new(Mutex::new(Account::new(budget, session))),
            tenant: Mutex::default(),
            uses: Mutex::default(),
            room: Arc::new(Semaphore::new(ROOM_EACH)),
            little: Arc::new(Semaphore::new(LITTLE_EACH)),
        }
    }

    /// Has it spend from the account of its tenant too, from now on.
    pub(super) fn set_tenant(&self, tenant: Option<Arc<Mutex<Account>>>) {
        *locked(&self.tenant) = tenant;
    }

    /// Takes these for its tokens from now on.
    pub(super) fn set_tokens(&self, tokens: Vec<TokenRecord>) {
        for record in &tokens {
            let mut accounts = locked(&self.accounts);
            let new = || Arc::new(Mutex::new(Account::new(record.grant.budget, Spent::default())));
            locked(accounts.entry(record.id.clone()).or_insert_with(new)).set_budget(record.grant.budget);
        }
        *locked(&self.tokens) = tokens;
    }

    /// Whether an operation may be called once more now; the place is given back when this is dropped.
    pub(super) fn place(&self, operation: &Operation) -> Result<Place, Cause> {
        let used = locked(&self.uses).entry(operation.name.clone()).or_default().clone();
        if let Some(most) = operation.requests_per_minute {
            let per_second = f64::from(most) / 60.0;
            let mut rate = locked(&used.rate);
            let now = Instant::now();
            let level = rate.map_or(f64::from(most), |(level, at)| {
                (level + now.duration_since(at).as_secs_f64() * per_second).min(f64::from(most))
            });
            if level < 1.0 {
                let retry_after = Duration::from_secs_f64((1.0 - level) / per_second);
                return Err(Cause::RateExceeded { retry_after });
            }
            *rate = Some((level - 1.0, now));
        }
        let most = operation.concurrent.unwrap_or(u32::MAX);
        let free = |open: u32| (open < most).then(|| open + 1);
        match used.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free) {
            Ok(_) => Ok(Place(used)),
            Err(_) => Err(Cause::RateExceeded { retry_after: Duration::from_secs(1) }),
        }
    }

    /// Whether one of its tokens is good.
    pub(super) fn has_good(&self, id: &str, now_ms: u64) -> bool {
        locked(&self.tokens).iter().any(|record| record.id == id && record.state(now_ms) == TokenState::Good)
    }

    /// Whether a budget is in money.
    pub(super) fn has_money(&self, record: &TokenRecord) -> bool {
        let tenant = locked(&self.tenant).clone();
        record.grant.budget.micro_dollars.is_some()
            || locked(&self.session).has_money()
            || tenant.is_some_and(|tenant| locked(&tenant).has_money())
    }

    /// Sets aside what a call may cost, of all budgets or of none.
    pub(super) fn set_aside(&self, record: &TokenRecord, most: Spent) -> Result<Aside, Cause> {
        let own = locked(&self.accounts).get(&record.id).cloned();
        let tenant = locked(&self.tenant).clone();
        let named = [("token", own), ("session", Some(self.session.clone())), ("tenant", tenant)];
        let named: Vec<(&str, Arc<Mutex<Account>>)> =
            named.into_iter().filter_map(|(name, account)| Some((name, account?))).collect();
        // Always in this order, so that two calls do not wait for each other.
        let mut locks: Vec<(&str, MutexGuard<'_, Account>)> =
            named.iter().map(|(name, account)| (*name, locked(account))).collect();
        let today = today();
        for (name, account) in &mut locks {
            account.turn(today);
            account.check(most).map_err(|used_up| Cause::BudgetUsedUp {
                budget: format!("the {name}'s budget of {} {}", used_up.most, used_up.what),
            })?;
        }
        locks.iter_mut().for_each(|(_, account)| account.set_aside(most));
        drop(locks);
        Ok(Aside { accounts: named.into_iter().map(|(_, account)| account).collect(), most })
    }
}

/// A place among the open calls of an operation.
pub(super) struct Place(Arc<Use>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is set aside for a call.
pub(super) struct Aside {
    accounts: Vec<Arc<Mutex<Account>>>,
    pub(super) most: Spent,
}

impl Aside {
    pub(super) fn settle(self, cost: Spent) {
        for account in &self.accounts {
            locked(account).settle(self.most, cost);
        }
    }
}
