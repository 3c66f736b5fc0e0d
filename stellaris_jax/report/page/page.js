
document.getElementById('scheme').onclick=()=>{const of=document.documentElement.dataset;
of.scheme=getComputedStyle(document.body).backgroundColor=='rgb(255, 255, 255)'?'dark':'light';
document.documentElement.style.colorScheme=of.scheme};
document.querySelectorAll('th button').forEach(b=>b.onclick=()=>{
const th=b.parentNode,i=th.cellIndex,body=th.closest('table').tBodies[0],up=th.getAttribute('aria-sort')!='ascending';
th.parentNode.querySelectorAll('th').forEach(h=>h.removeAttribute('aria-sort'));
th.setAttribute('aria-sort',up?'ascending':'descending');
const key=r=>{const c=r.cells[i],v=c.dataset.v;
return v!==undefined?+v:c.classList.contains('n')?NaN:c.textContent};
[...body.rows].sort((a,b)=>{const x=key(a),y=key(b);if(x!==x||y!==y)return (x!==x)-(y!==y);
return (typeof x=='number'&&typeof y=='number'?x-y:String(x).localeCompare(y,undefined,{numeric:true}))*(up?1:-1)
}).forEach(r=>body.append(r))});
