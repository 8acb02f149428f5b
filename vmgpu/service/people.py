"""People, their SSH keys, and the secrets that stand for them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import datetime, timedelta

from sqlmodel import Session, col, delete, func, select

from vmgpu import sshkeys
from vmgpu.db import Database, alone, note_setting, setting
from vmgpu.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from vmgpu.models import VM, Console, Image, Key, Token, TokenKind, User, VMMember, VMState, new_id, now
from vmgpu.requests import KeyRequest, TokenRequest, UserRequest
from vmgpu.service import host_keys
from vmgpu.service.access import Actor, find_user, must_be_admin
from vmgpu.settings import Settings

FIRST_ADMIN = "admin"
SESSION_LASTS = timedelta(days=7)
LINK_LASTS = timedelta(minutes=30)
TOKEN_FILE = "admin-token"  # noqa: S105 - a file's name


def settle_in(db: Database, settings: Settings) -> None:
    """At the first start: this installation's id, its SSH keys, the first admin and the admin's token."""
    with db.write() as session:
        alone(session)  # several processes may start at once
        if setting(session, "installation") is None:
            note_setting(session, "installation", new_id())
            ours = sshkeys.make_pair("vmgpu")
            note_setting(session, "ssh_private", ours.private)
            note_setting(session, "ssh_public", ours.public)
        host_keys.make(session)
        if session.exec(select(func.count()).select_from(User)).one():
            return
        admin = User(name=FIRST_ADMIN, admin=True)
        session.add(admin)
        session.flush()
        secret = settings.admin_token or secrets.token_urlsafe(32)
        session.add(Token(user_id=admin.id, name="first start", digest=_digest(secret)))
        if settings.admin_token is None:
            # only who reads our data folder anyway finds it: the command line on this machine
            path = settings.data_dir / TOKEN_FILE
            path.touch(mode=0o600)
            path.write_text(secret + "\n")


def who(db: Database, secret: str, *, kinds: tuple[TokenKind, ...] = (TokenKind.api, TokenKind.session)) -> Actor:
    """The person that an API token or a browser's session stands for. Raises Unauthenticated."""
    with db.read() as session:
        row = session.exec(
            select(Token, User).join(User, col(User.id) == Token.user_id).where(Token.digest == _digest(secret))
        ).first()
    if row is None or row[0].kind not in kinds or _over(row[0]):
        raise Unauthenticated("This token is not known, or its time is over", hint="Ask an admin for a new one.")
    return Actor(row[1].id, row[1].name, row[1].admin)


def sign_in(db: Database, secret: str) -> tuple[Actor, str]:
    """Use up a one-time link; the answer is the person and the browser's session secret."""
    with db.write() as session:
        link = session.exec(select(Token).where(Token.digest == _digest(secret)).with_for_update()).first()
        if link is None or link.kind is not TokenKind.link or _over(link):
            raise Unauthenticated(
                "This sign-in link was used already, or its time is over",
                hint="Ask an admin for a new one (vmgpu user link NAME).",
            )
        user = session.get_one(User, link.user_id)
        session.delete(link)
        fresh = secrets.token_urlsafe(32)
        session.add(_token(user, fresh, TokenKind.session, "browser", now() + SESSION_LASTS))
        return Actor(user.id, user.name, user.admin), fresh


def sign_out(db: Database, secret: str) -> None:
    """End a browser's session."""
    with db.write() as session:
        session.execute(delete(Token).where(col(Token.digest) == _digest(secret), col(Token.kind) == TokenKind.session))


def make_link(db: Database, actor: Actor, name: str) -> str:
    """The secret of a link that signs a person in once; admins make them for anyone, others for themselves."""
    if name != actor.name:
        must_be_admin(actor)
    with db.write() as session:
        user = find_user(session, name)
        secret = secrets.token_urlsafe(32)
        session.add(_token(user, secret, TokenKind.link, "sign-in link", now() + LINK_LASTS))
        return secret


def add_user(db: Database, actor: Actor, asked: UserRequest) -> User:
    """Take a person in."""
    must_be_admin(actor)
    with db.write() as session:
        if session.exec(select(User).where(User.name == asked.name)).first():
            raise Conflict(f"There is a user {asked.name} already", hint="Take another name.", where="name")
        user = User(name=asked.name, admin=asked.admin)
        session.add(user)
        return user


def remove_user(db: Database, actor: Actor, name: str) -> None:
    """Let a person go, with keys and tokens; refused while they have VMs or images, and for the last admin."""
    must_be_admin(actor)
    with db.write() as session:
        user = find_user(session, name)
        if session.exec(select(VM.id).where(VM.owner_id == user.id, VM.state != VMState.gone)).first():
            raise Conflict(f"{name} has VMs", hint="Release them first.")
        if session.exec(select(Image.id).where(Image.owner_id == user.id)).first():
            raise Conflict(f"{name} has images", hint="Delete them first.")
        if user.admin and session.exec(select(func.count()).select_from(User).where(User.admin)).one() == 1:
            raise Conflict(f"{name} is the last admin", hint="Make another one first.")
        gone = session.exec(select(VM.id).where(VM.owner_id == user.id)).all()
        session.execute(delete(VMMember).where(col(VMMember.user_id) == user.id))
        session.execute(delete(VMMember).where(col(VMMember.vm_id).in_(gone)))
        session.execute(delete(Console).where(col(Console.vm_id).in_(gone)))
        session.execute(delete(VM).where(col(VM.id).in_(gone)))
        session.execute(delete(Key).where(col(Key.user_id) == user.id))
        session.execute(delete(Token).where(col(Token.user_id) == user.id))
        session.delete(user)


def add_keys(db: Database, actor: Actor, name: str, asked: KeyRequest) -> list[Key]:
    """Take in a person's public keys; one that is known already is left as it is."""
    found = sshkeys.parse(asked.keys)
    with db.write() as session:
        user = _self_or_admin(session, actor, name)
        known = {key.fingerprint: key for key in session.exec(select(Key).where(Key.user_id == user.id)).all()}
        made = [
            known.get(key.fingerprint)
            or Key(user_id=user.id, line=key.line, comment=key.comment, fingerprint=key.fingerprint)
            for key in found
        ]
        if not made:
            raise Invalid("There is no key in this text", hint="Paste lines that begin with ssh-ed25519.", where="keys")
        session.add_all(made)
        return made


def remove_key(db: Database, actor: Actor, name: str, key_id: str) -> None:
    """Forget a key, by id or fingerprint; VMs that were built with it keep it."""
    with db.write() as session:
        user = _self_or_admin(session, actor, name)
        for key in session.exec(select(Key).where(Key.user_id == user.id)).all():
            if key_id in (key.id, key.fingerprint):
                session.delete(key)
                return
        raise NotFound(f"{name} has no key {key_id!r}", hint=f"List them: vmgpu key list {name}.")


def add_token(db: Database, actor: Actor, name: str, asked: TokenRequest) -> tuple[Token, str]:
    """An API token for a person, and its secret, which is shown this once."""
    with db.write() as session:
        user = _self_or_admin(session, actor, name)
        secret = secrets.token_urlsafe(32)
        token = _token(user, secret, TokenKind.api, asked.name, now() + asked.valid if asked.valid else None)
        session.add(token)
        return token, secret


def remove_token(db: Database, actor: Actor, token_id: str) -> None:
    """Make a token worthless."""
    with db.write() as session:
        token = session.get(Token, token_id)
        if token is None or (token.user_id != actor.id and not actor.admin):
            raise NotFound(f"There is no token {token_id!r}", hint="List them: vmgpu token list.")
        session.delete(token)


def users_own(session: Session, actor: Actor, name: str | None) -> User:
    """The person meant by a name, or the one who asks; others than admins mean only themselves."""
    return _self_or_admin(session, actor, name or actor.name)


def _self_or_admin(session: Session, actor: Actor, name: str) -> User:
    if name != actor.name and not actor.admin:
        raise Forbidden("This is another person's", hint="Ask them or an admin.")
    return find_user(session, name)


def _token(user: User, secret: str, kind: TokenKind, name: str, expires_at: datetime | None) -> Token:
    return Token(user_id=user.id, kind=kind, name=name, digest=_digest(secret), expires_at=expires_at)


def _digest(secret: str) -> str:
    # secrets are long and random, so a plain keyed hash is enough: nothing to guess, and quick at every request
    return hmac.new(b"vmgpu", secret.encode(), hashlib.sha256).hexdigest()


def _over(token: Token) -> bool:
    return token.expires_at is not None and token.expires_at <= now()
