//! A Debian from its packages: unpacked in a sandbox of the host's programs, set up in one of its own.

use std::collections::BTreeMap;

use belljar_core::{Error, ErrorCode, Result, UserName};
use belljar_layers::{Digest, Record};

use crate::files::Copied;
use crate::pack::Dress;
use crate::step::Run;
use crate::workshop::{Progress, Tell, Workshop, failed};

/// Fetches what every Debian has, and unpacks it to `/build`. Nothing of it is run.
const UNPACK: &str = r#"
set -e
suite="$1"
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo 'this machine has no apt and dpkg to build a Debian with' >&2
    exit 1
fi
own=$(. /etc/os-release; echo "$VERSION_CODENAME")
[ -n "$suite" ] || suite="$own"
root=/build
mkdir -p $root/etc/apt/apt.conf.d $root/etc/apt/preferences.d $root/etc/apt/sources.list.d $root/var/lib/dpkg \
    $root/var/lib/apt/lists/partial $root/var/cache/apt/archives/partial $root/tmp
: > $root/var/lib/dpkg/status
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    [ -f "$list" ] || continue
    sed "s/\b$own\b/$suite/g" "$list" > "$root/etc/apt/${list#/etc/apt/}"
done
echo "APT::Architecture \"$(dpkg --print-architecture)\";
Dir \"$root\";
Dir::Etc::Trusted \"/etc/apt/trusted.gpg\";
Dir::Etc::TrustedParts \"/etc/apt/trusted.gpg.d\";
Dir::State::status \"$root/var/lib/dpkg/status\";
APT::Install-Recommends \"false\";
APT::Sandbox::User \"root\";
Debug::NoLocking \"true\";" > /tmp/apt.conf
export APT_CONFIG=/tmp/apt.conf
apt-get update -q
apt-get install -q -y --download-only '?essential' apt ca-certificates debian-archive-keyring
for directory in bin sbin lib lib64; do
    mkdir -p $root/usr/$directory
    ln -s usr/$directory $root/$directory
done
for package in $root/var/cache/apt/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C $root
done
cp $root/usr/share/base-passwd/passwd.master $root/etc/passwd
cp $root/usr/share/base-passwd/group.master $root/etc/group
rm -rf $root/var/lib/apt/lists $root/var/cache/apt/*.bin
mkdir -p $root/var/lib/apt/lists/partial
"#;

/// Sets them up, in the Debian that they are.
const SET_UP: &str = r#"
set -e
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true
cd /var/cache/apt/archives
dpkg --force-depends --force-confnew --install base-passwd_*.deb base-files_*.deb libc6_*.deb perl-base_*.deb dpkg_*.deb
dpkg --force-depends --force-confnew --install *.deb
dpkg --configure -a
rm -f /var/cache/apt/archives/*.deb /var/log/*.log /var/log/apt/* /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old \
    /var/lib/dpkg/*-old /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow-
"#;

/// What is told of it.
const STEPS: [&str; 2] = ["Debian's packages", "setting them up"];

impl Workshop {
    /// A Debian of this suite, or of the one that this machine has.
    pub(crate) async fn debian(&self, suite: Option<&str>, tell: Tell<'_>) -> Result<Record> {
        let suite = suite.unwrap_or_default();
        let host = self.jail.host_digest().await?;
        let key = |script: &str, below: &Digest| {
            let depends = serde_json::to_vec(&("debian", script, &host, suite, below));
            Digest::of(&depends.unwrap_or_default())
        };
        let nothing = Record::nothing();
        let unpacked_key = key(UNPACK, &nothing.digest());
        let unpacked = match self.recall(&unpacked_key)? {
            Some(record) => record,
            None => {
                tell(step(0));
                let record = self.unpacked(&nothing, suite, tell).await?;
                self.catalog.remember(&self.held, &unpacked_key, &record, STEPS[0]).map_err(failed)?;
                record
            }
        };
        let done_key = key(SET_UP, &unpacked.digest());
        if let Some(record) = self.recall(&done_key)? {
            return Ok(record);
        }
        tell(step(1));
        let record = self.run(&unpacked, run(SET_UP, ""), tell).await?;
        self.catalog.remember(&self.held, &done_key, &record, STEPS[1]).map_err(failed)?;
        Ok(record)
    }

    async fn unpacked(&self, nothing: &Record, suite: &str, tell: Tell<'_>) -> Result<Record> {
        if !suite.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("`{}` is no suite", suite.escape_debug()),
            ));
        }
        let built = self.run(&Record::host(), run(UNPACK, suite), tell).await?;
        let sources = ["/build".to_owned()];
        let copied = Copied { sources: &sources, target: "/", unpack: false };
        let packed = self.pack_template(nothing, &built, &copied, Dress::AS_IT_WAS).await?;
        self.lay(nothing, packed).await
    }
}

fn step(number: usize) -> Progress {
    Progress::Step { number: number + 1, all: STEPS.len(), text: STEPS[number].to_owned(), kept: false }
}

fn run(script: &str, argument: &str) -> Run {
    Run {
        command: ["/bin/sh", "-c", script, "debian", argument].map(str::to_owned).into(),
        env: BTreeMap::new(),
        user: UserName::Root,
        directory: Some("/".into()),
        files: Vec::new(),
    }
}
