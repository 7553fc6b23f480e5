//! The accounts a sandbox sees: the host's system accounts, because packages name them, and `user`.
//!
//! No person of the host, no password hash, no membership.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::source::Source;

/// The account that runs code inside.
pub(super) const USER_ID: u32 = 1000;

const NOBODY_ID: u32 = 65534;
const NO_LOGIN: &str = "/usr/sbin/nologin";

/// The generated files.
pub(super) struct Accounts {
    pub(super) passwd: String,
    pub(super) group: String,
    pub(super) shadow: String,
}

struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

/// Home directories of the host: of the caller, and of every account that has one of its own.
pub(super) fn homes(source: &Source) -> Vec<PathBuf> {
    let mut homes: Vec<PathBuf> = ["/root"].iter().map(PathBuf::from).collect();
    homes.extend(source.home().map(Path::to_owned));
    for account in read_passwd(source) {
        let home = PathBuf::from(account.home);
        let system = ["/usr", "/bin", "/sbin", "/dev", "/proc", "/run", "/nonexistent"];
        if home.is_absolute() && home != Path::new("/") && !system.iter().any(|place| home.starts_with(place))
        {
            homes.push(home);
        }
    }
    let real: Vec<_> = homes.iter().filter_map(|home| source.canonical(home)).collect();
    homes.extend(real);
    homes.sort();
    homes.dedup();
    homes
}

pub(super) fn generate(source: &Source, shell: &Path) -> Accounts {
    let shell = shell.display();
    let mut passwd = format!("root:x:0:0:root:/root:{shell}\n");
    let mut shadow = "root:*:19000:0:99999:7:::\n".to_owned();
    let mut names = BTreeSet::from(["root".to_owned(), "user".to_owned()]);
    let system = read_passwd(source).into_iter().filter(|account| account.is_system() && account.uid != 0);
    let nobody = Account {
        name: "nobody".to_owned(),
        uid: NOBODY_ID,
        gid: NOBODY_ID,
        home: "/nonexistent".to_owned(),
        shell: String::new(),
    };
    for Account { name, uid, gid, home, .. } in system.chain([nobody]) {
        if !names.insert(name.clone()) {
            continue;
        }
        let gid = if gid < 1000 { gid } else { NOBODY_ID };
        let home = if Path::new(&home).starts_with("/home") { "/nonexistent" } else { &home };
        passwd.push_str(&format!("{name}:x:{uid}:{gid}::{home}:{NO_LOGIN}\n"));
        shadow.push_str(&format!("{name}:*:19000:0:99999:7:::\n"));
    }
    passwd.push_str(&format!("user:x:{USER_ID}:{USER_ID}::/home/user:{shell}\n"));
    shadow.push_str("user:*:19000:0:99999:7:::\n");
    Accounts { passwd, group: generate_group(source), shadow }
}

fn generate_group(source: &Source) -> String {
    let mut group = String::new();
    let mut names = BTreeSet::from(["user".to_owned()]);
    let text = source.settings(Path::new("/etc/group")).unwrap_or_default();
    let listed = text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| is_name(name))?;
        let gid: u32 = fields.nth(1)?.parse().ok()?;
        (gid < 1000 || gid == NOBODY_ID).then(|| (name.to_owned(), gid))
    });
    let required = [
        ("root", 0),
        ("tty", 5),
        ("mail", 8),
        ("shadow", 42),
        ("utmp", 43),
        ("staff", 50),
        ("nogroup", NOBODY_ID),
    ];
    for (name, gid) in listed.chain(required.map(|(name, gid)| (name.to_owned(), gid))) {
        if names.insert(name.clone()) {
            group.push_str(&format!("{name}:x:{gid}:\n"));
        }
    }
    group.push_str(&format!("user:x:{USER_ID}:\n"));
    group
}

impl Account {
    /// Some hosts number people from 500: a login shell together with a home under `/home` is a person.
    fn is_system(&self) -> bool {
        let login = !["nologin", "false", "sync"].iter().any(|end| self.shell.ends_with(end));
        let person = login && Path::new(&self.home).starts_with("/home");
        (self.uid < 1000 && !person) || (self.uid == NOBODY_ID && self.name == "nobody")
    }
}

fn read_passwd(source: &Source) -> Vec<Account> {
    let text = source.settings(Path::new("/etc/passwd")).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let [name, _, uid, gid, _, home, shell] = line.split(':').collect::<Vec<_>>().try_into().ok()?;
            is_name(name).then_some(())?;
            Some(Account {
                name: name.to_owned(),
                uid: uid.parse().ok()?,
                gid: gid.parse().ok()?,
                home: home.to_owned(),
                shell: shell.to_owned(),
            })
        })
        .collect()
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 32
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::FakeHost;
    use super::*;

    #[test]
    fn system_accounts_stay_and_people_do_not() {
        let host = FakeHost::new();
        host.write(
            "/etc/passwd",
            "root:$6$hash:0:0:The Boss:/root:/bin/zsh\n\
             postgres:x:101:104:PostgreSQL,,,:/var/lib/postgresql:/bin/bash\n\
             syslog:x:102:106::/home/syslog:/usr/sbin/nologin\n\
             old:x:501:501:Old Person:/home/old:/bin/bash\n\
             ann:x:1000:1000:Ann:/home/ann:/bin/zsh\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
             broken line\nbad name:x:5:5::/:/bin/sh\n",
            0o644,
        );
        host.write(
            "/etc/group",
            "root:x:0:\nsudo:$1$hash:27:ann\nann:x:1000:\nssl-cert:x:105:ann,bob\n",
            0o644,
        );
        let accounts = generate(&host.source(&[]), Path::new("/bin/bash"));
        assert_eq!(
            accounts.passwd,
            "root:x:0:0:root:/root:/bin/bash\n\
             postgres:x:101:104::/var/lib/postgresql:/usr/sbin/nologin\n\
             syslog:x:102:106::/nonexistent:/usr/sbin/nologin\n\
             nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n\
             user:x:1000:1000::/home/user:/bin/bash\n"
        );
        assert!(accounts.group.starts_with("root:x:0:\nsudo:x:27:\nssl-cert:x:105:\n"), "{}", accounts.group);
        assert!(accounts.group.ends_with("nogroup:x:65534:\nuser:x:1000:\n"), "{}", accounts.group);
        let all = format!("{}{}{}", accounts.passwd, accounts.group, accounts.shadow);
        for planted in ["hash", "ann", "bob", "old", "Boss", "zsh"] {
            assert!(!all.contains(planted), "{planted} in {all}");
        }
    }

    #[test]
    fn host_without_accounts_still_gives_the_needed_ones() {
        let host = FakeHost::new();
        std::fs::remove_file(host.path("/etc/passwd")).unwrap();
        let accounts = generate(&host.source(&[]), Path::new("/bin/sh"));
        assert_eq!(accounts.passwd.lines().count(), 3);
    }

    #[test]
    fn homes_are_those_of_people_and_the_caller() {
        let host = FakeHost::new();
        assert_eq!(homes(&host.source(&[])), [Path::new("/home/ann"), Path::new("/root")]);
    }
}
